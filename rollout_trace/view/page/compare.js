// Two trajectories side by side, step by step: #/compare/KEY/KEY2?step=3
(() => {
  const { placeOf } = RT.details;
  const { stepLink, waiting } = RT.conversation;

  /** The first index at which two columns differ; null where one has none, or where they are the same. */
  function differsAt(one, other) {
    if (!one || !other) return null;
    const n = Math.min(one.length, other.length);
    for (let i = 0; i < n; i += 1) if (one[i] !== other[i]) return i;
    return one.length === other.length ? null : n;
  }

  function tokenOf(one, other) {
    const [a, b] = [one.tokens || {}, other.tokens || {}];
    return a.ids && b.ids ? differsAt(a.ids, b.ids) : differsAt(a.texts, b.texts);
  }

  /** How two steps differ: null, or {what: "request" or "answer", token}. */
  function difference(one, other) {
    const token = tokenOf(one, other);
    const same = (valueOf) => JSON.stringify(valueOf(one)) === JSON.stringify(valueOf(other));
    if (!same((view) => [view.new, view.repeated])) return { what: "request", token };
    const content = ({ answer }) => (answer ? answer.parts : []).map((part) => [part.kind, part.text, part.name]);
    return token === null && same(content) ? null : { what: "answer", token };
  }

  function says({ what, token }) {
    const where = known(token) ? `, from token ${count(token)} of the answer on` : "";
    if (what === "answer") return `the answers differ${where}`;
    return `what was asked differs${where && `; the answers differ${where}`}`;
  }

  const ENDED = "one of them has ended";

  class View extends RT.ChosenStep {
    async open() {
      if (this.path.length !== 2) throw new Error("A comparison needs two trajectories: #/compare/KEY/KEY2");
      this.outlines = await Promise.all(this.path.map(RT.data.trajectory));
      if (this.closed) return;
      this.pages = this.outlines.map((outline, i) => new RT.Pages(this.path[i], outline.steps));
      const lengths = this.outlines.map((outline) => outline.steps.length);
      this.shared = Math.min(...lengths);
      this.longer = lengths[0] > lengths[1] ? 0 : 1;
      this.rest = lengths[this.longer] - this.shared;
      // Steps that one of them has alone are one line.
      this.n = this.shared + Math.min(1, this.rest);
      this.build();
      this.apply(true);
      await this.search();
    }

    build() {
      const named = ({ summary: { name, task, group, index } }) =>
        [name, task || group, known(index) && `#${index}`].filter(Boolean).join(" ");
      RT.app.setTitle(this.outlines.map(named).join(" beside "));
      const list = el("div.steps.pairs");
      const box = el("div.scroll", { tabindex: "0", role: "region", "aria-label": "both conversations" }, list);
      this.verdict = el("div.verdict", { role: "status" });
      this.token = el("div.compare-token.soft.num", "Point at a token to see its logprob.");
      this.painters = this.outlines.map(() => new RT.tokens.Painter({
        root: box, color: this.state.color, onhover: (found) => this.hover(found), onpin: (found) => this.hover(found),
      }));
      this.contexts = this.outlines.map((outline, i) =>
        RT.conversation.makeContext(outline, this.painters[i], (step) => this.goStep(step)));
      this.buildColors(RT.places.COLORS);
      const swap = el("a.button", { href: RT.app.hash("compare", this.path.toReversed()) }, "swap");
      fill(this.element, el("div.traj.compare",
        el("div.toolbar", this.verdict, this.colors, this.legend, swap, this.token),
        el("div.heads", this.outlines.map((_, i) => this.head(i))), el("div.middle", box)));
      this.buildScroller(box, list, this.n, () => 240, (i) => this.pair(i));
    }

    head(i) {
      const [{ summary }, { summary: other }] = [this.outlines[i], this.outlines[1 - i]];
      const delta = (name) => known(summary[name]) && known(other[name]) && summary[name] !== other[name] &&
        soft(` (${summary[name] > other[name] ? "+" : ""}${number(summary[name] - other[name])})`);
      return el("header.head.card",
        el("h1", el("a", { href: RT.app.hash("t", [this.path[i]]) }, summary.name), " ", soft(placeOf(summary))),
        el("div.num", el("b", `reward ${number(summary.reward)}`), delta("reward"), ` · ${summary.status}`),
        el("div.soft.num", plural(summary.steps, "step"), delta("steps"), ` · ${count(summary.output_tokens)} sampled`,
          delta("output_tokens"), known(summary.cost) && ` · ${cost(summary.cost, summary.currency)}`,
          known(summary.seconds) && ` · ${duration(summary.seconds)}`));
    }

    pair(i) {
      if (i === this.shared) return this.alone(i);
      const views = this.pages.map((pages) => pages.get(i));
      const ready = !views.includes(null);
      if (!ready) this.fetch(i);
      const found = ready ? difference(...views) : null;
      const label = !ready ? "…" : found ? `step ${i}: ${says(found)}` : `step ${i}: the same`;
      const kind = found ? " other" : ready ? " same" : "";
      return this.sides(i, kind, label, label, views.map((view, side) => this.side(view, side, i, found)));
    }

    alone(i) {
      const place = RT.app.hash("t", [this.path[this.longer]], { step: i });
      const goesOn = el("a", { href: place }, plural(this.rest, "step"));
      const notes = [0, 1].map((side) =>
        el("div.absent.soft", side === this.longer ? ["goes on for ", goesOn] : "has ended"));
      return this.sides(i, " other", `step ${i}`, `step ${i}: ${ENDED}`, notes);
    }

    sides(i, kind, name, label, nodes) {
      const selected = i === this.state.step ? " selected" : "";
      return el("section", { class: `pair${kind}${selected}`, "aria-label": name, data: { pair: i } },
        el("div.pair-label.soft", label), el("div.pair-sides", nodes));
    }

    side(view, side, i, found) {
      if (view === null) return waiting(this.outlines[side].steps[i], this.outlines[side], this.problem);
      const step = RT.conversation.step(view, this.contexts[side], found && found.token);
      step.setAttribute("aria-label", `step ${i} of the ${side ? "right" : "left"} one`);
      return step;
    }

    load(i) {
      return Promise.all(this.pages.map((pages) => pages.load(i)));
    }

    async fetch(i) {
      if (this.problem) return;
      await this.load(i).catch((error) => { this.problem = error.message; });
      if (!this.closed) this.scroller.refresh(i);
    }

    /** Finds the first step that differs, and says so. */
    async search() {
      for (let i = 0; i < this.n; i += 1) {
        if (i % 50 === 0) fill(this.verdict, `comparing: ${count(i)} of ${count(this.n)} steps`);
        const views = i < this.shared ? await this.load(i) : null;
        if (this.closed) return;
        const found = views && difference(...views);
        if (views && !found) continue;
        return void fill(this.verdict, "First difference: ", stepLink(i, this.contexts[0]),
          ` (${found ? says(found) : ENDED})`);
      }
      fill(this.verdict, this.n ? "Both are the same in every step." : "Neither has a step.");
    }

    hover(found) {
      if (!found) return;
      const { view: { tokens: { texts, ids, logprobs }, line }, token } = found;
      const logprob = logprobs && logprobs[token];
      fill(this.token, `step ${line.index}, token ${token}: `, texts && el("code", JSON.stringify(texts[token])),
        ids && ` id ${ids[token]}`, known(logprob) && ` · logprob ${logprob.toFixed(3)} (p ${probability(logprob)})`);
    }

    apply(jump) {
      if (this.state.step !== null) this.state.step = this.nearest(this.state.step);
      this.showChosen(jump);
    }

    keys = [
      { key: "j", label: "next step", run: () => this.move(1) },
      { key: "k", label: "previous step", run: () => this.move(-1) },
      { key: "Escape", label: "back to the first of the two", run: () => RT.app.go(RT.app.hash("t", [this.path[0]])) },
    ];
  }

  RT.app.route("compare", (params, element) => new View("compare", params, element));
})();
