// The search inside a trajectory: over what is loaded while one types, over every step on Enter.
RT.find = (() => {
  const { el, count, plural } = RT.dom;

  class Finder {
    // `pages()` and `lines()` give what is searched; `go(step)` shows a step that has the text; `root`: where found
    // texts are marked.
    constructor({ pages, lines, go, root }) {
      Object.assign(this, { pages, lines, go, root });
      this.query = "";
      this.matches = [];
      this.complete = "";
      this.input = el("input", {
        class: "field", type: "search", placeholder: "search this trajectory", "aria-label": "search this trajectory", spellcheck: "false",
      });
      this.state = el("span", { class: "soft num", role: "status" });
      this.element = el("div", { class: "find" }, this.input, this.state);
      this.input.addEventListener("input", () => this.typed());
      this.input.addEventListener("keydown", (event) => this.key(event));
    }

    close() {
      this.run = null;
      if (window.CSS && CSS.highlights) CSS.highlights.delete("found");
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
      this.matches = this.query ? this.searchLoaded() : [];
      this.show();
      this.mark();
    }

    searchLoaded() {
      const pages = this.pages();
      const found = [];
      for (const line of this.lines()) {
        const page = pages.pages.get(pages.page(line.index));
        const view = page && page[line.index - pages.bounds[pages.page(line.index)]];
        if (this.has(line, view)) found.push(line.index);
      }
      return found;
    }

    has(line, view) {
      const texts = view ? RT.conversation.texts(view) : [];
      texts.push(line.excerpt, line.status, line.agent, ...(line.tools || []));
      return texts.some((text) => text && text.toLowerCase().includes(this.query));
    }

    show() {
      const whole = this.complete === this.query;
      if (!this.query) this.state.textContent = "";
      else if (this.run) this.state.textContent = `searched ${count(this.run.done)} of ${count(this.lines().length)} steps`;
      else if (!this.matches.length) this.state.textContent = whole ? "in no step" : "not in what is loaded: Enter searches all";
      else {
        const place = this.at === null ? "" : `${count(this.matches.indexOf(this.at) + 1)} of `;
        this.state.textContent = `${place}${plural(this.matches.length, "step")}${whole ? "" : ", Enter searches all"}`;
      }
    }

    /** Goes to the next step that has the text; searches all steps first. */
    async next(way) {
      if (!this.query) return;
      if (this.complete !== this.query && !(await this.searchAll())) return;
      if (!this.matches.length) return this.show();
      const from = this.at === null ? null : this.matches.indexOf(this.at);
      const to = from === null ? (way > 0 ? 0 : this.matches.length - 1) : from + way;
      this.at = this.matches[(to + this.matches.length) % this.matches.length];
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
        steps.forEach((view) => this.has(lines[view.line.index], view) && found.push(view.line.index));
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
      if (!window.CSS || !CSS.highlights) return;
      CSS.highlights.delete("found");
      if (this.query.length < 2) return;
      const ranges = [];
      for (const block of this.root.querySelectorAll(".content")) {
        if (ranges.length > 500) break;
        this.markIn(block, ranges);
      }
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
      let node = 0;
      const place = (at) => {
        while (node + 1 < nodes.length && starts[node + 1] <= at) node += 1;
        return [nodes[node], Math.min(at - starts[node], nodes[node].data.length)];
      };
      for (let at = whole.indexOf(this.query); at >= 0 && ranges.length <= 500; at = whole.indexOf(this.query, at + this.query.length)) {
        const range = new Range();
        range.setStart(...place(at));
        const [end, offset] = place(at + this.query.length - 1);
        range.setEnd(end, Math.min(offset + 1, end.data.length));
        ranges.push(range);
      }
    }
  }

  return { Finder };
})();
