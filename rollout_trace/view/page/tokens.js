// The tokens of completions, coloured by what is known of each.
//
// A completion of any length is cut into chunks. A chunk near the visible part of the page has an element for each
// token; one further away has its text alone, which takes the same room, so that nothing moves when they change.
RT.tokens = (() => {
  const { el, text } = RT.dom;
  const CHUNK = 400;
  // As in rollout_trace/view/styles.py.
  const PROBABILITIES = [0.9, 0.5, 0.1, 0.01];
  const RATIOS = [1.01, 1.1, 1.5, 2];

  // From sure to surprising. The classes q0 to q4 have a colour each, and the last two a line below as well.
  const SCALES = {
    logprob: {
      title: "probability of the token that was sampled, from its logprob",
      labels: ["p ≥ 0.9", "< 0.9", "< 0.5", "< 0.1", "< 0.01"],
      level: (tokens, i) => {
        const value = at(tokens.logprobs, i);
        if (value === null) return null;
        // Logprobs are stored in 32 bits.
        return PROBABILITIES.filter((p) => value < Math.log(p) - 1e-6).length;
      },
    },
    entropy: {
      title: "entropy of the recorded alternatives, in nats: at least so much",
      labels: ["< 0.1", "< 0.5", "< 1", "< 2", "≥ 2 nats"],
      level: (tokens, i) => {
        const value = at(tokens.entropy, i);
        if (value === null) return null;
        return value < 0.1 ? 0 : value < 0.5 ? 1 : value < 1 ? 2 : value < 2 ? 3 : 4;
      },
    },
    ratio: {
      title: "the trainer's probability divided by the engine's, or the inverse of that",
      labels: ["ratio < 1.01", "≥ 1.01", "≥ 1.1", "≥ 1.5", "≥ 2, or ≤ ½"],
      level: (tokens, i) => {
        const value = at(tokens.log_ratios, i);
        if (value === null) return null;
        return RATIOS.filter((one) => Math.abs(value) >= Math.log(one) - 1e-6).length;
      },
    },
    mask: {
      title: "whether training learns from the token",
      labels: ["trained (mask 1)", "not trained"],
      classes: ["m1", "m0"],
      level: (tokens, i, mask) => (mask && mask(i) === 1 ? 0 : 1),
    },
    plain: { title: "no colour", labels: [], level: () => null },
  };

  const at = (column, i) => (column && column[i] !== undefined ? column[i] : null);
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

  // Which tokens are in which part of an answer: [{part, begin, end}] in their order, over all tokens. Tokens in no part
  // (a template's marks) have part null; a part whose text is not among the tokens has begin null.
  function arrange(parts, tokens) {
    const n = tokens.n;
    if (!tokens.texts) return [...parts.map((part) => ({ part, begin: null })), { part: null, begin: 0, end: n }];
    const starts = new Uint32Array(n + 1);
    for (let i = 0; i < n; i += 1) starts[i + 1] = starts[i] + tokens.texts[i].length;
    const joined = tokens.texts.join("");
    const pieces = [];
    let done = 0;
    let missed = false;
    for (const part of parts) {
      const wanted = part.kind === "image" || part.kind === "audio" || part.kind === "file" ? "" : part.text || "";
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
      this.root = root;
      this.color = color;
      this.onhover = onhover;
      this.onpin = onpin;
      this.chunks = new WeakMap();
      this.painted = new Set();
      this.pinned = null;
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
      this.painted.clear();
    }

    // An element with the tokens from `begin` to `end` of a step; `options.mask(i)` is a token's mask,
    // `options.marked` the token from which on another trajectory differs; `options.compact`: see `visible`.
    fragment(view, begin, end, options = {}) {
      const box = el("span", {
        class: "tokens",
        tabindex: "0",
        role: "group",
        "aria-label": `Tokens ${begin} to ${end - 1} of step ${view.line.index}. Arrow keys go over them.`,
      });
      for (let from = begin; from < end; from += CHUNK) {
        const chunk = el("span", { class: "chunk" });
        const to = Math.min(from + CHUNK, end);
        this.chunks.set(chunk, { view, begin: from, end: to, options });
        if (from === begin) this.paint(chunk);
        else this.unpaint(chunk);
        if (end - begin > CHUNK) this.observer.observe(chunk);
        box.append(chunk);
      }
      return box;
    }

    seen(entries) {
      for (const entry of entries) {
        if (!entry.target.isConnected) this.observer.unobserve(entry.target);
        else if (entry.isIntersecting) this.paint(entry.target);
        else this.unpaint(entry.target);
      }
    }

    paint(chunk) {
      if (this.painted.has(chunk)) return;
      const { view, begin, end, options } = this.chunks.get(chunk);
      const spans = [];
      for (let i = begin; i < end; i += 1) {
        const span = document.createElement("span");
        span.append(text(visible(view.tokens, i, options.compact)));
        span.dataset.i = i;
        spans.push(span);
      }
      chunk.replaceChildren(...spans);
      this.painted.add(chunk);
      this.dress(chunk);
    }

    unpaint(chunk) {
      const { view, begin, end, options } = this.chunks.get(chunk);
      const shown = [];
      for (let i = begin; i < end; i += 1) shown.push(visible(view.tokens, i, options.compact));
      chunk.replaceChildren(text(shown.join("")));
      this.painted.delete(chunk);
    }

    dress(chunk) {
      const { view, begin, options } = this.chunks.get(chunk);
      const scale = SCALES[this.color];
      const pinned = this.pinned && this.pinned.step === view.line.index ? this.pinned.token : null;
      let i = begin;
      for (const span of chunk.children) {
        const level = scale.level(view.tokens, i, options.mask);
        let name = level === null ? "t" : `t ${scale.classes ? scale.classes[level] : `q${level}`}`;
        if (view.tokens.texts && special(view.tokens.texts[i])) name += " special";
        if (i === pinned) name += " pinned";
        if (i === options.marked) name += " differs";
        span.className = name;
        i += 1;
      }
    }

    setColor(color) {
      this.color = color;
      this.forget();
      for (const chunk of this.painted) this.dress(chunk);
    }

    forget() {
      for (const chunk of this.painted) if (!chunk.isConnected) this.painted.delete(chunk);
    }

    // Marks a token; null: none. Brings it into sight if it is in the document.
    pin(step, token, { scroll = false } = {}) {
      this.pinned = token === null ? null : { step, token };
      this.forget();
      for (const chunk of this.painted) this.dress(chunk);
      if (token === null) return;
      for (const chunk of this.root.querySelectorAll(".chunk")) {
        const held = this.chunks.get(chunk);
        if (held && held.view.line.index === step && held.begin <= token && token < held.end) {
          this.paint(chunk);
          if (scroll) chunk.children[token - held.begin].scrollIntoView({ block: "nearest" });
        }
      }
    }

    find(target) {
      const span = target.closest && target.closest(".chunk > .t");
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
      if (!box || event.altKey || event.ctrlKey || event.metaKey) return;
      const move = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 10, ArrowUp: -10, Home: -Infinity, End: Infinity }[event.key];
      if (move === undefined && event.key !== "Enter") return;
      const first = this.chunks.get(box.firstElementChild);
      const last = this.chunks.get(box.lastElementChild);
      const inside = this.pinned && this.pinned.step === first.view.line.index &&
        this.pinned.token >= first.begin && this.pinned.token < last.end;
      const from = inside ? this.pinned.token : first.begin - (move > 0 ? 1 : 0);
      const token = Math.max(first.begin, Math.min(last.end - 1, from + (move || 0)));
      event.preventDefault();
      event.stopPropagation();
      this.onpin({ view: first.view, token, options: first.options, keyboard: true });
    }
  }

  // The colours of a scale and what they stand for.
  function legend(color) {
    const scale = SCALES[color];
    const box = el("div", { class: "legend", title: scale.title, role: "img", "aria-label": legendText(color) });
    scale.labels.forEach((label, i) => {
      box.append(el("span", { class: `t ${scale.classes ? scale.classes[i] : `q${i}`}` }, label));
    });
    return box;
  }

  const legendText = (color) => `Colours: ${SCALES[color].title}. ${SCALES[color].labels.join(", ")}`;

  return { Painter, SCALES, COLORS: Object.keys(SCALES), arrange, legend, visible };
})();
