// The whole steps of a trajectory, fetched in pages of at most 50 and of a bounded number of tokens.
RT.Pages = (() => {
  const STEPS = 50;
  const TOKENS = 40000;
  const KEPT = 8;

  return class {
    constructor(key, lines) {
      Object.assign(this, { key, n: lines.length, bounds: [0], pages: new Map(), waiting: new Map() });
      let tokens = 0;
      for (const [i, { n_completion: n = 0 }] of lines.entries()) {
        const first = this.bounds.at(-1);
        if (i > first && (i - first >= STEPS || tokens + n > TOKENS)) {
          this.bounds.push(i);
          tokens = 0;
        }
        tokens += n;
      }
    }

    page(index) {
      return upTo(this.bounds, index) - 1;
    }

    // The step, or null while it is not loaded.
    get(index) {
      const page = this.page(index);
      const steps = this.pages.get(page);
      if (!steps) return null;
      // Those that were looked at last are kept.
      this.pages.delete(page);
      this.pages.set(page, steps);
      return steps[index - this.bounds[page]] || null;
    }

    async load(index) {
      await this.fetch(this.page(index));
      return this.get(index);
    }

    fetch(page) {
      if (this.pages.has(page)) return Promise.resolve(this.pages.get(page));
      if (!this.waiting.has(page)) this.waiting.set(page, this.ask(page).finally(() => this.waiting.delete(page)));
      return this.waiting.get(page);
    }

    async ask(page) {
      const steps = await RT.data.steps(this.key, this.bounds[page], this.bounds[page + 1] ?? this.n);
      this.pages.set(page, steps);
      if (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
      return steps;
    }

    // The steps that are loaded, by their index.
    loaded() {
      return new Map([...this.pages.values()].flat().map((view) => [view.line.index, view]));
    }

    // The numbers of all pages, loaded ones first: for a search.
    order() {
      return sortedBy([...this.bounds.keys()], (page) => (this.pages.has(page) ? 0 : 1));
    }
  };
})();
