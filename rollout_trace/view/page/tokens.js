// The tokens of completions, coloured by what is known of each.
//
// A completion of any length is cut into chunks. A chunk near the visible part of the page has an element for each
// token; one further away has its text alone, which takes the same room, so that nothing moves when they change.
RT.tokens = (() => {
  const CHUNK = 400;
  // As in rollout_trace/view/styles.py. Logprobs are stored in 32 bits.
  const LOGPROBS = [0.9, 0.5, 0.1, 0.01].map((p) => Math.log(p) - 1e-6);
  const ENTROPIES = [0.1, 0.5, 1, 2];
  const LOG_RATIOS = [1.01, 1.1, 1.5, 2].map((one) => Math.log(one) - 1e-6);
  const MOVES = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity, Enter: 0 };

  /** A function that gives the level of a token: how many bounds its value in a column passes; null without one. */
  const levels = (column, bounds, passes) => (tokens, i) => {
    const value = valueOf(tokens, column, i);
    return value === null ? null : bounds.filter((bound) => passes(value, bound)).length;
  };

  const valueOf = (tokens, column, i) => (tokens[column] ? tokens[column][i] ?? null : null);

  // From sure to surprising. The classes q0 to q4 have a colour each, and the last two a line below as well.
  const QUALITIES = ["q0", "q1", "q2", "q3", "q4"];
  const SCALES = {
    logprob: {
      title: "probability of the token that was sampled, from its logprob",
      labels: ["p ≥ 0.9", "< 0.9", "< 0.5", "< 0.1", "< 0.01"],
      classes: QUALITIES,
      level: levels("logprobs", LOGPROBS, (value, bound) => value < bound),
    },
    entropy: {
      title: "entropy of the recorded alternatives, in nats: at least so much",
      labels: ["< 0.1", "< 0.5", "< 1", "< 2", "≥ 2 nats"],
      classes: QUALITIES,
      level: levels("entropy", ENTROPIES, (value, bound) => value >= bound),
    },
    ratio: {
      title: "the trainer's probability divided by the engine's, or the inverse of that",
      labels: ["ratio < 1.01", "≥ 1.01", "≥ 1.1", "≥ 1.5", "≥ 2, or ≤ ½"],
      classes: QUALITIES,
      level: levels("log_ratios", LOG_RATIOS, (value, bound) => Math.abs(value) >= bound),
    },
    mask: {
      title: "whether training learns from the token",
      labels: ["trained (mask 1)", "not trained"],
      classes: ["m1", "m0"],
      level: (tokens, i, mask) => (mask && mask(i) === 1 ? 0 : 1),
    },
    plain: { title: "no colour", labels: [], level: () => null },
  };

  const special = (shown) => /^<[|/]?[^<>\s]{1,40}>$/.test(shown.trim());

  // What stands for a token on the page: its text with blanks and line ends to be seen, or its id.
  // `compact`: lines do not end where the text's do.
  function visible(tokens, i, compact) {
    if (!tokens.texts) return tokens.ids ? `${tokens.ids[i]} ` : "? ";
    const shown = tokens.texts[i];
    if (shown === "") return "◌";
    const blank = /^\s+$/.test(shown) ? shown.replaceAll(" ", "·").replaceAll("\t", "⇥\t") : shown;
    return blank.replaceAll("\r", "␍").replaceAll("\n", compact ? "⏎" : "⏎\n");
  }

  // Which tokens are in which part of an answer: [{part, begin, end}] in their order, over all tokens. Tokens in no
  // part (a template's marks) have part null; a part whose text is not among the tokens has begin null.
  function arrange(parts, { n, texts }) {
    if (!texts) return [...parts.map((part) => ({ part, begin: null })), { part: null, begin: 0, end: n }];
    const starts = new Uint32Array(n + 1);
    for (let i = 0; i < n; i += 1) starts[i + 1] = starts[i] + texts[i].length;
    const joined = texts.join("");
    const pieces = [];
    let done = 0;
    let missed = false;
    for (const part of parts) {
      const wanted = isMedia(part) ? "" : part.text;
      const found = wanted && (!missed || wanted.length >= 8) ? joined.indexOf(wanted, starts[done]) : -1;
      if (found < 0) {
        missed = missed || wanted !== "";
        pieces.push({ part, begin: null });
        continue;
      }
      let begin = done;
      while (begin < n && starts[begin + 1] <= found) begin += 1;
      let end = begin;
      while (end < n && starts[end] < found + wanted.length) end += 1;
      if (begin > done) pieces.push({ part: null, begin: done, end: begin });
      pieces.push({ part, begin, end });
      done = end;
    }
    if (done < n) pieces.push({ part: null, begin: done, end: n });
    return pieces;
  }

  // Draws tokens below one scrolled element, and reports which one is pointed at and which is chosen.
  class Painter {
    constructor({ root, color, onhover, onpin }) {
      Object.assign(this, { root, color, onhover, onpin, pinned: null });
      this.chunks = new WeakMap();
      this.painted = new Set();
      this.observer = new IntersectionObserver((entries) => this.seen(entries), { root, rootMargin: "600px 0px" });
      this.listen = new AbortController();
      const options = { signal: this.listen.signal };
      root.addEventListener("mouseover", (event) => this.hover(event.target), options);
      root.addEventListener("mouseleave", () => this.onhover(null), options);
      root.addEventListener("click", (event) => this.click(event), options);
      root.addEventListener("keydown", (event) => this.key(event), options);
    }

    close() {
      this.observer.disconnect();
      this.listen.abort();
    }

    // An element with the tokens from `begin` to `end` of a step; `options.mask(i)` is a token's mask,
    // `options.marked` the token from which on another trajectory differs; `options.compact`: see `visible`.
    fragment(view, begin, end, options) {
      const label = `Tokens ${begin} to ${end - 1} of step ${view.line.index}. Arrow keys go over them.`;
      const box = el("span.tokens", { tabindex: "0", role: "group", "aria-label": label });
      for (let from = begin; from < end; from += CHUNK) {
        const chunk = el("span.chunk");
        this.chunks.set(chunk, { view, begin: from, end: Math.min(from + CHUNK, end), options });
        if (from === begin) this.paint(chunk);
        else this.unpaint(chunk);
        if (end - begin > CHUNK) this.observer.observe(chunk);
        box.append(chunk);
      }
      return box;
    }

    seen(entries) {
      for (const { target, isIntersecting } of entries) {
        if (!target.isConnected) this.observer.unobserve(target);
        else if (isIntersecting) this.paint(target);
        else this.unpaint(target);
      }
    }

    texts(chunk) {
      const { view, begin, end, options } = this.chunks.get(chunk);
      return Array.from({ length: end - begin }, (_, i) => visible(view.tokens, begin + i, options.compact));
    }

    paint(chunk) {
      if (this.painted.has(chunk)) return;
      const { begin } = this.chunks.get(chunk);
      chunk.replaceChildren(...this.texts(chunk).map((shown, i) => {
        const span = document.createElement("span");
        span.append(text(shown));
        span.dataset.i = begin + i;
        return span;
      }));
      this.painted.add(chunk);
      this.dress(chunk);
    }

    unpaint(chunk) {
      chunk.replaceChildren(text(this.texts(chunk).join("")));
      this.painted.delete(chunk);
    }

    dress(chunk) {
      const { view: { tokens, line }, begin, options } = this.chunks.get(chunk);
      const scale = SCALES[this.color];
      const pinned = this.pinned && this.pinned.step === line.index ? this.pinned.token : null;
      let i = begin;
      for (const span of chunk.children) {
        const level = scale.level(tokens, i, options.mask);
        let name = level === null ? "t" : `t ${scale.classes[level]}`;
        if (tokens.texts && special(tokens.texts[i])) name += " special";
        if (i === pinned) name += " pinned";
        if (i === options.marked) name += " differs";
        span.className = name;
        i += 1;
      }
    }

    // Dresses what is in the document, and forgets what is not any more.
    dressAll() {
      for (const chunk of this.painted) {
        if (chunk.isConnected) this.dress(chunk);
        else this.painted.delete(chunk);
      }
    }

    setColor(color) {
      this.color = color;
      this.dressAll();
    }

    // Marks a token; null: none. Brings it into sight if it is in the document.
    pin(step, token, scroll) {
      this.pinned = token === null ? null : { step, token };
      this.dressAll();
      if (token === null) return;
      for (const chunk of this.root.querySelectorAll(".chunk")) {
        const { view, begin, end } = this.chunks.get(chunk);
        if (view.line.index !== step || token < begin || token >= end) continue;
        this.paint(chunk);
        if (scroll) chunk.children[token - begin].scrollIntoView({ block: "nearest" });
      }
    }

    find(target) {
      const span = target.closest(".chunk > .t");
      const held = span && this.chunks.get(span.parentElement);
      return held ? { view: held.view, token: Number(span.dataset.i), options: held.options } : null;
    }

    hover(target) {
      const found = this.find(target);
      if (found) this.onhover(found);
      else if (!target.closest(".tokens")) this.onhover(null);
    }

    click(event) {
      const found = this.find(event.target);
      if (found && !String(window.getSelection())) this.onpin(found);
    }

    key(event) {
      const box = event.target.closest(".tokens");
      if (!box || event.altKey || event.ctrlKey || event.metaKey || !(event.key in MOVES)) return;
      const move = MOVES[event.key];
      const { view, begin, options } = this.chunks.get(box.firstElementChild);
      const { end } = this.chunks.get(box.lastElementChild);
      const { step, token } = this.pinned || {};
      const isInside = step === view.line.index && token >= begin && token < end;
      const wanted = (isInside ? token : begin - (move > 0 ? 1 : 0)) + move;
      event.preventDefault();
      event.stopPropagation();
      this.onpin({ view, token: Math.max(begin, Math.min(end - 1, wanted)), options, keyboard: true });
    }
  }

  // The colours of a scale and what they stand for.
  function legend(color) {
    const { title, labels, classes } = SCALES[color];
    const said = `Colours: ${title}. ${labels.join(", ")}`;
    return el("div.legend", { title, role: "img", "aria-label": said },
      labels.map((label, i) => el("span", { class: `t ${classes[i]}` }, label)));
  }

  // What is known of one token.

  const quoted = (value) => (known(value) ? `"${text(value).replaceAll("\n", "⏎").replaceAll("\t", "⇥")}"` : null);

  // A part of the side with `show(found, pinned)`; `found` is what a Painter reports, or null.
  function panel(outline) {
    const body = el("div.token-detail");
    const heading = el("span", "Token");
    const live = el("div.unseen", { "aria-live": "polite" });
    const element = section("Token", body, live);
    element.querySelector("h2").replaceChildren(heading);

    function show(found, pinned) {
      if (!found) return void fill(body, el("p.soft",
        "Point at a token to see what is known of it; click to keep it, then go on with the arrow keys."));
      const { view, token } = found;
      fill(heading, `Token ${count(token)} of step ${count(view.line.index)}${pinned ? " (kept)" : ""}`);
      fill(body, facts(outline, found), alternatives(view.tokens, token));
      if (pinned) live.textContent = spoken(view.tokens, token);
    }

    show(null, false);
    return { element, show };
  }

  function spoken(tokens, i) {
    const logprob = valueOf(tokens, "logprobs", i);
    const name = tokens.texts ? quoted(tokens.texts[i]) : `id ${valueOf(tokens, "ids", i) ?? "unknown"}`;
    return known(logprob) ? `${name}, probability ${probability(logprob)}` : name;
  }

  function facts(outline, { view, token: i, options }) {
    const { tokens, line } = view;
    const shown = (column, format) => {
      const value = valueOf(tokens, column, i);
      return value === null ? null : format(value);
    };
    return terms([
      ["text", shown("texts", (value) => el("code", quoted(value)))],
      ["id", shown("ids", String)],
      ["logprob", shown("logprobs", (value) => value.toFixed(3))],
      ["probability", shown("logprobs", probability)],
      ["entropy", shown("entropy", (value) => `≥ ${value.toFixed(3)} nats`)],
      ["ratio, trainer to engine", shown("log_ratios", ratio)],
      ["mask", known(line.row) ? options.mask && options.mask(i) : `no row (${line.left_out || "left out"})`],
      ["row, position", known(line.row) && known(line.begin) ? `${line.row}, ${count(line.begin + i)}` : null],
      ["policy version", view.policy_version],
      ["advantage", number(view.advantage)],
      ["logprobs are", view.logprobs_mode],
      ["ids from", view.token_source],
      ["texts from", outline.token_texts],
    ]);
  }

  // What could have been sampled, with bars.
  function alternatives(tokens, i) {
    const list = valueOf(tokens, "alternatives", i);
    if (!list || !list.length) return null;
    const sampled = valueOf(tokens, "ids", i);
    const rows = list.map(([shown, id, logprob]) => {
      const same = known(id) && known(sampled) ? id === sampled : tokens.texts && shown === tokens.texts[i];
      const width = known(logprob) ? Math.max(1, 100 * Math.exp(logprob)) : 0;
      return [
        el("dt", { class: same && "sampled", title: known(id) && `id ${id}` },
          el("code", quoted(shown) || `id ${id}`), same && soft(" sampled")),
        el("dd", el("i", { class: same ? "bar sampled" : "bar", style: { width: `${width}%` } }),
          el("span.num", known(logprob) ? probability(logprob) : "-")),
      ];
    });
    return [el("h3", "Alternatives"), el("dl.alternatives", rows)];
  }

  return { Painter, arrange, legend, visible, panel };
})();
