// The search inside a trajectory: over what is loaded while one types, over every step on Enter.
RT.Finder = class {
  // `pages()` and `lines()` give what is searched; `go(step)` shows a step that has the text; `root`: where found
  // texts are marked.
  constructor({ pages, lines, go, root }) {
    Object.assign(this, { pages, lines, go, root, query: "", matches: [], complete: "" });
    const name = "search this trajectory";
    this.input = el("input.field", {
      type: "search", placeholder: name, "aria-label": name, spellcheck: "false",
      on: { input: () => this.typed(), keydown: (event) => this.key(event) },
    });
    this.state = el("span.soft.num", { role: "status" });
    this.element = el("div.find", this.input, this.state);
  }

  close() {
    this.run = null;
    if (CSS.highlights) CSS.highlights.delete("found");
  }

  key(event) {
    if (event.key === "Escape") {
      this.input.value = "";
      this.typed();
      this.input.blur();
    } else if (event.key === "Enter") {
      event.preventDefault();
      this.next(event.shiftKey ? -1 : 1);
    }
  }

  typed() {
    this.query = this.input.value.toLowerCase();
    this.run = null;
    this.at = null;
    const views = this.pages().loaded();
    const found = this.lines().filter((line) => this.query && this.has(line, views.get(line.index)));
    this.matches = found.map((line) => line.index);
    this.show();
    this.mark();
  }

  has(line, view) {
    const texts = [line.excerpt, line.status, line.agent, ...line.tools, ...(view ? RT.conversation.texts(view) : [])];
    return texts.some((one) => one && one.toLowerCase().includes(this.query));
  }

  show() {
    this.state.textContent = this.said();
  }

  said() {
    const whole = this.complete === this.query;
    if (!this.query) return "";
    if (this.run) return `searched ${count(this.run.done)} of ${count(this.lines().length)} steps`;
    if (!this.matches.length) return whole ? "in no step" : "not in what is loaded: Enter searches all";
    const place = this.at === null ? "" : `${count(this.matches.indexOf(this.at) + 1)} of `;
    return `${place}${plural(this.matches.length, "step")}${whole ? "" : ", Enter searches all"}`;
  }

  /** Goes to the next step that has the text; searches all steps first. */
  async next(way) {
    if (!this.query) return;
    if (this.complete !== this.query && !(await this.searchAll())) return;
    if (!this.matches.length) return this.show();
    const from = this.at === null ? (way > 0 ? -1 : 0) : this.matches.indexOf(this.at);
    this.at = this.matches.at((from + way) % this.matches.length);
    this.show();
    await this.go(this.at);
    this.mark();
  }

  /** Whether it came to its end: another text was not asked for meanwhile. */
  async searchAll() {
    const run = { done: 0 };
    this.run = run;
    const pages = this.pages();
    const lines = this.lines();
    const found = [];
    for (const page of pages.order()) {
      const steps = await pages.fetch(page).catch(() => []);
      if (this.run !== run) return false;
      found.push(...steps.map((view) => view.line.index).filter((index, i) => this.has(lines[index], steps[i])));
      run.done += steps.length;
      this.show();
    }
    this.run = null;
    this.complete = this.query;
    this.matches = found.sort((a, b) => a - b);
    return true;
  }

  /** Marks the text where it is in the document. Nothing is changed there. */
  mark() {
    if (!CSS.highlights) return;
    CSS.highlights.delete("found");
    if (this.query.length < 2) return;
    const ranges = [];
    for (const block of this.root.querySelectorAll(".content")) if (ranges.length <= 500) this.markIn(block, ranges);
    if (ranges.length) CSS.highlights.set("found", new Highlight(...ranges));
  }

  markIn(block, ranges) {
    const walker = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    const nodes = [];
    const starts = [];
    let whole = "";
    while (walker.nextNode()) {
      nodes.push(walker.currentNode);
      starts.push(whole.length);
      whole += walker.currentNode.data.toLowerCase();
    }
    const place = (at, more) => {
      const i = upTo(starts, at) - 1;
      return [nodes[i], Math.min(at - starts[i] + more, nodes[i].data.length)];
    };
    let at = 0;
    while (ranges.length <= 500 && (at = whole.indexOf(this.query, at)) >= 0) {
      const range = new Range();
      range.setStart(...place(at, 0));
      at += this.query.length;
      range.setEnd(...place(at - 1, 1));
      ranges.push(range);
    }
  }
};
