// The whole steps of a trajectory, fetched in pages of at most 50 and of a bounded number of tokens.
RT.steps = (() => {
  const STEPS = 50;
  const TOKENS = 40000;
  const KEPT = 8;

  class Pages {
    constructor(key, lines) {
      this.key = key;
      this.bounds = [0];
      let tokens = 0;
      for (let i = 0; i < lines.length; i += 1) {
        const n = lines[i].n_completion || 0;
        const first = this.bounds[this.bounds.length - 1];
        if (i > first && (i - first >= STEPS || tokens + n > TOKENS)) {
          this.bounds.push(i);
          tokens = 0;
        }
        tokens += n;
      }
      this.n = lines.length;
      this.pages = new Map();
      this.waiting = new Map();
    }

    page(index) {
      let low = 0;
      let high = this.bounds.length - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.bounds[middle] <= index) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    // The step, or null while it is not loaded.
    get(index) {
      const page = this.page(index);
      const steps = this.pages.get(page);
      if (!steps) return null;
      this.pages.delete(page);
      this.pages.set(page, steps);
      return steps[index - this.bounds[page]] || null;
    }

    // A promise of the step.
    async load(index) {
      await this.fetch(this.page(index));
      return this.get(index);
    }

    fetch(page) {
      if (this.pages.has(page)) return Promise.resolve(this.pages.get(page));
      if (this.waiting.has(page)) return this.waiting.get(page);
      const first = this.bounds[page];
      const end = page + 1 < this.bounds.length ? this.bounds[page + 1] : this.n;
      const promise = RT.data.steps(this.key, first, end).then((steps) => {
        this.waiting.delete(page);
        this.pages.set(page, steps);
        while (this.pages.size > KEPT) this.pages.delete(this.pages.keys().next().value);
        return steps;
      }, (error) => {
        this.waiting.delete(page);
        throw error;
      });
      this.waiting.set(page, promise);
      return promise;
    }

    // Steps with their pages' numbers, loaded ones first: for a search.
    order() {
      const all = this.bounds.map((_, page) => page);
      return all.sort((a, b) => Number(this.pages.has(b)) - Number(this.pages.has(a)) || a - b);
    }
  }

  return { Pages };
})();
