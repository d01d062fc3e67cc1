// Two trajectories side by side, step by step: #/compare/KEY/KEY2?step=3
RT.compare = (() => {
  const { el, fill, count, duration, number, plural, cost } = RT.dom;
  const { known, choice, choose } = RT.shown;

  /** The first index at which two columns differ; null where one has none, or where they are the same. */
  function differsAt(one, other) {
    if (!one || !other) return null;
    const n = Math.min(one.length, other.length);
    for (let i = 0; i < n; i += 1) if (one[i] !== other[i]) return i;
    return one.length === other.length ? null : n;
  }

  /** How two steps differ: null, or {what: "request" or "answer", token}. */
  function difference(one, other) {
    if (JSON.stringify(one.new || []) !== JSON.stringify(other.new || []) || (one.repeated || 0) !== (other.repeated || 0)) {
      return { what: "request", token: tokenOf(one, other) };
    }
    const token = tokenOf(one, other);
    if (token !== null) return { what: "answer", token };
    const content = (view) => JSON.stringify(((view.answer || {}).parts || []).map(({ kind, text, name }) => [kind, text, name]));
    return content(one) === content(other) ? null : { what: "answer", token: null };
  }

  function tokenOf(one, other) {
    const [a, b] = [one.tokens || {}, other.tokens || {}];
    return a.ids && b.ids ? differsAt(a.ids, b.ids) : differsAt(a.texts, b.texts);
  }

  class View {
    constructor(params, element) {
      this.keys = params.path.slice(0, 2);
      this.element = element;
      this.query = params.query;
      this.color = RT.place.stateOf(params.query).color;
      this.step = RT.place.stateOf(params.query).step;
    }

    async open() {
      if (this.keys.length < 2) throw new Error("A comparison needs two trajectories: #/compare/KEY/KEY2");
      this.outlines = await Promise.all(this.keys.map((key) => RT.data.trajectory(key)));
      if (this.closed) return;
      this.pages = this.outlines.map((outline, i) => new RT.steps.Pages(this.keys[i], outline.steps));
      const lengths = this.outlines.map((outline) => outline.steps.length);
      this.shared = Math.min(...lengths);
      this.longer = lengths[0] > lengths[1] ? 0 : 1;
      this.rest = lengths[this.longer] - this.shared;
      // Steps that one of them has alone are one line.
      this.n = this.shared + Math.min(1, this.rest);
      this.build();
      if (this.step !== null) this.go(this.step);
      await this.search();
    }

    close() {
      this.closed = true;
      if (this.scroller) this.scroller.close();
      for (const painter of this.painters || []) painter.close();
    }

    build() {
      const [one, other] = this.outlines.map((outline) => outline.summary);
      const named = ({ name, task, group, index }) => [name, task || group, known(index) && `#${index}`].filter(Boolean).join(" ");
      RT.app.setTitle(`${named(one)} beside ${named(other)}`);
      this.scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "both conversations" });
      const list = el("div", { class: "steps pairs" });
      this.verdict = el("div", { class: "verdict", role: "status" });
      this.token = el("div", { class: "compare-token soft num" }, "Point at a token to see its logprob.");
      this.scroll.append(list);
      const heads = el("div", { class: "heads" }, this.outlines.map((outline, i) => this.head(outline.summary, i)));
      this.painters = this.outlines.map(() => new RT.tokens.Painter({
        root: this.scroll, color: this.color, onhover: (found) => found && this.hover(found), onpin: (found) => this.hover(found),
      }));
      this.contexts = this.outlines.map((outline, i) => RT.conversation.makeContext(outline, this.painters[i], (step) => this.go(step)));
      this.colors = choice("colour of tokens", RT.tokens.COLORS.map((name) => [name, name]), this.color, (color) => this.setColor(color));
      this.legend = el("div", { class: "legend-place" }, RT.tokens.legend(this.color));
      const swap = el("a", { class: "button", href: RT.app.hash("compare", [this.keys[1], this.keys[0]]) }, "swap");
      fill(this.element, el("div", { class: "traj compare" },
        el("div", { class: "toolbar" }, this.verdict, this.colors, this.legend, swap, this.token), heads, el("div", { class: "middle" }, this.scroll)));
      this.scroller = new RT.scroller.Scroller({
        box: this.scroll, list, n: this.n, estimate: () => 240, build: (i) => this.pair(i), onview: (first) => (this.first = first), first: this.step,
      });
    }

    head(summary, i) {
      const other = this.outlines[1 - i].summary;
      const delta = (name) => (known(summary[name]) && known(other[name]) && summary[name] !== other[name]
        ? el("span", { class: "soft" }, ` (${summary[name] > other[name] ? "+" : ""}${number(summary[name] - other[name])})`) : null);
      return el("header", { class: "head card" },
        el("h1", {}, el("a", { href: RT.app.hash("t", [this.keys[i]]) }, summary.name || "agent"), " ",
          el("span", { class: "soft" }, [summary.task || summary.group, known(summary.index) && `rollout ${summary.index}`].filter(Boolean).join(" · "))),
        el("div", { class: "num" }, el("b", {}, `reward ${number(summary.reward)}`), delta("reward"), ` · ${summary.status || "completed"}`),
        el("div", { class: "soft num" }, plural(summary.steps || 0, "step"), delta("steps"), ` · ${count(summary.output_tokens)} sampled`,
          delta("output_tokens"), known(summary.cost) && ` · ${cost(summary.cost, summary.currency)}`,
          known(summary.seconds) && ` · ${duration(summary.seconds)}`));
    }

    pair(i) {
      if (i === this.shared) return this.alone(i);
      const views = this.pages.map((pages) => pages.get(i));
      const ready = !views.includes(null);
      const found = ready ? difference(views[0], views[1]) : null;
      const sides = views.map((view, side) => this.side(view, side, i, found));
      if (!ready) this.fetch(i);
      const label = !ready ? "…" : found ? `step ${i}: ${this.says(found)}` : `step ${i}: the same`;
      return el("section", { class: `pair${found ? " other" : ready ? " same" : ""}${i === this.step ? " selected" : ""}`, "aria-label": label, data: { pair: i } },
        el("div", { class: "pair-label soft" }, label), el("div", { class: "pair-sides" }, sides));
    }

    alone(i) {
      const link = el("a", { href: RT.app.hash("t", [this.keys[this.longer]], { step: i }) }, plural(this.rest, "step"));
      const note = el("div", { class: "absent soft" }, "goes on for ", link);
      return el("section", { class: `pair other${i === this.step ? " selected" : ""}`, "aria-label": `step ${i}`, data: { pair: i } },
        el("div", { class: "pair-label soft" }, `step ${i}: one of them has ended`),
        el("div", { class: "pair-sides" }, [0, 1].map((side) => (side === this.longer ? note : el("div", { class: "absent soft" }, "has ended")))));
    }

    side(view, side, i, found) {
      if (view === null) return RT.conversation.waiting(this.outlines[side].steps[i], this.outlines[side], this.problem);
      const step = RT.conversation.step(view, this.contexts[side], { marked: found ? found.token : null });
      step.setAttribute("aria-label", `step ${i} of the ${side ? "right" : "left"} one`);
      return step;
    }

    says(found) {
      if (found.what === "missing") return "one of them has ended";
      const token = known(found.token) ? `, from token ${count(found.token)} of the answer on` : "";
      return found.what === "request" ? `what was asked differs${token && `; the answers differ${token}`}` : `the answers differ${token}`;
    }

    async load(i) {
      await Promise.all(this.pages.map((pages) => pages.load(i)));
    }

    async fetch(i) {
      if (this.problem) return;
      try {
        await this.load(i);
      } catch (error) {
        this.problem = error.message;
      }
      if (!this.closed) this.scroller.refresh(i);
    }

    /** Finds the first step that differs, and says so. */
    async search() {
      for (let i = 0; i < this.n; i += 1) {
        if (i % 50 === 0) fill(this.verdict, `comparing: ${count(i)} of ${count(this.n)} steps`);
        if (i < this.shared) await this.load(i);
        if (this.closed) return;
        const found = i < this.shared ? difference(...this.pages.map((pages) => pages.get(i))) : { what: "missing" };
        if (!found) continue;
        return void fill(this.verdict, "First difference: ",
          el("button", { class: "link", type: "button", on: { click: () => this.go(i) } }, `step ${i}`), ` (${this.says(found)})`);
      }
      fill(this.verdict, this.n ? "Both are the same in every step." : "Neither has a step.");
    }

    hover({ view, token }) {
      const { tokens } = view;
      const logprob = tokens.logprobs ? tokens.logprobs[token] : null;
      fill(this.token, `step ${view.line.index}, token ${token}: `, tokens.texts && el("code", {}, JSON.stringify(tokens.texts[token])),
        tokens.ids && ` id ${tokens.ids[token]}`, known(logprob) && ` · logprob ${RT.shown.nats(logprob)} (p ${RT.shown.probability(logprob)})`);
    }

    setColor(color) {
      this.color = color;
      choose(this.colors, color);
      fill(this.legend, RT.tokens.legend(color));
      for (const painter of this.painters) painter.setColor(color);
      this.address();
    }

    address() {
      RT.app.replace(RT.app.hash("compare", this.keys, { step: this.step, color: this.color === "logprob" ? null : this.color }));
    }

    go(step) {
      this.step = Math.max(0, Math.min(this.n - 1, step));
      this.address();
      for (const [index, item] of this.scroller.items) item.classList.toggle("selected", index === this.step);
      this.scroller.show(this.step);
    }

    move(way) {
      if (this.n) this.go((this.step ?? this.first - (way > 0 ? 1 : 0)) + way);
    }
  }

  let view = null;

  RT.app.route("compare", {
    async open(params, element) {
      view = new View(params, element);
      await view.open();
    },
    close() {
      if (view) view.close();
      view = null;
    },
    update(params) {
      const { step, color } = RT.place.stateOf(params.query);
      if (!view || !view.scroller) return;
      view.setColor(color);
      if (step !== null) view.go(step);
    },
    keys: [
      { key: "j", label: "next step", run: () => view && view.scroller && view.move(1) },
      { key: "k", label: "previous step", run: () => view && view.scroller && view.move(-1) },
      { key: "Escape", label: "back to the first of the two", run: () => view && RT.app.go(RT.app.hash("t", [view.keys[0]])) },
    ],
  });

  return { difference };
})();
