// A list of any length, of which the part near the visible one is in the document.
//
// Heights are estimated until they are measured. What is at the top stays where it is while heights above it change.
RT.Scroller = (() => {
  const OVER = 500;
  const MOST = 60;
  const FAR = 1e7;
  // What stands above the list is in sight.
  const TOP = { index: 0, offset: -Infinity };

  return class {
    // box: the scrolled element; list: the element in it that gets the items; estimate(i): pixels; build(i): an
    // element; onview(first): called with the first item that is seen; first: the item that is shown first, or null.
    constructor({ box, list, n, estimate, build, onview, first }) {
      Object.assign(this, { box, list, build, onview, estimate });
      this.before = el("div");
      this.after = el("div");
      this.items = new Map();
      this.heights = [];
      this.anchor = first > 0 ? { index: first, offset: -8 } : TOP;
      this.frame = 0;
      list.replaceChildren(this.before, this.after);
      this.sizes = new ResizeObserver(() => this.measured());
      this.sizes.observe(box);
      this.listen = new AbortController();
      const { signal } = this.listen;
      box.addEventListener("scroll", () => this.follow() && this.render(), { passive: true, signal });
      box.addEventListener("keydown", (event) => this.key(event), { signal });
      this.resize(n);
    }

    close() {
      this.sizes.disconnect();
      this.listen.abort();
      cancelAnimationFrame(this.frame);
    }

    // The list has `n` items now; heights that were measured are kept.
    resize(n) {
      const before = this.heights;
      this.heights = Float64Array.from({ length: n }, (_, i) => before[i] ?? this.estimate(i));
      this.n = n;
      if (this.anchor.index >= n) this.anchor = TOP;
      this.tops = new Float64Array(n + 1);
      this.sum(0);
      this.refresh();
    }

    sum(from) {
      for (let i = from; i < this.n; i += 1) this.tops[i + 1] = this.tops[i] + this.heights[i];
    }

    at(y) {
      return Math.max(0, Math.min(this.n, upTo(this.tops, y)) - 1);
    }

    // To the ends at once: the browser's own way there would be broken off where heights become known.
    key(event) {
      if (event.target !== this.box || event.defaultPrevented || !this.n) return;
      if (event.key !== "Home" && event.key !== "End") return;
      event.preventDefault();
      this.anchor = event.key === "Home" ? TOP : { index: this.n - 1, offset: FAR };
      this.render();
    }

    // Whether the reader scrolled since the last time: what is at the top now stays there.
    follow() {
      const { scrollTop, scrollHeight, clientHeight } = this.box;
      if (!this.n || this.expected === undefined || Math.abs(scrollTop - this.expected) < 2) return false;
      // The list became shorter, and the browser moved its end to the edge: nobody scrolled.
      if (scrollTop < this.expected && scrollTop >= scrollHeight - clientHeight - 1) return false;
      const y = scrollTop - this.list.offsetTop;
      const index = this.at(y);
      this.anchor = scrollTop <= 0 ? TOP : { index, offset: y - this.tops[index] };
      return true;
    }

    // Puts an item at the top, a little below the edge.
    show(index) {
      if (!this.n) return;
      this.anchor = index <= 0 ? TOP : { index: Math.min(this.n - 1, index), offset: -8 };
      this.render();
    }

    settle() {
      const wanted = Math.max(0, this.tops[this.anchor.index] + this.anchor.offset + this.list.offsetTop);
      if (Math.abs(this.box.scrollTop - wanted) >= 1) this.box.scrollTop = wanted;
      this.expected = this.box.scrollTop;
    }

    render() {
      if (!this.n) return;
      const height = this.box.clientHeight || 800;
      const wanted = this.tops[this.anchor.index] + this.anchor.offset;
      const y = Math.max(-this.list.offsetTop, Math.min(wanted, this.tops[this.n] - height));
      const first = this.at(y - OVER);
      const last = Math.min(this.at(y + height + OVER), first + MOST - 1);
      for (const index of this.items.keys()) if (index < first || index > last) this.remove(index);
      let next = this.after;
      for (let i = last; i >= first; i -= 1) {
        if (!this.items.has(i)) this.insert(i, next);
        next = this.items.get(i);
      }
      this.range = [first, last];
      this.space();
      this.measure();
      this.settle();
      this.onview(this.at(y + 12));
    }

    space() {
      this.before.style.height = `${this.tops[this.range[0]]}px`;
      this.after.style.height = `${this.tops[this.n] - this.tops[this.range[1] + 1]}px`;
    }

    measure() {
      let from = this.n;
      for (const [index, item] of this.items) {
        const { height } = item.getBoundingClientRect();
        if (!height || Math.abs(height - this.heights[index]) <= 0.5) continue;
        this.heights[index] = height;
        from = Math.min(from, index);
      }
      this.sum(from);
      if (from < this.n) this.space();
    }

    measured() {
      cancelAnimationFrame(this.frame);
      this.frame = requestAnimationFrame(() => {
        if (!this.box.clientHeight) return;
        this.follow();
        this.measure();
        this.render();
      });
    }

    insert(index, next) {
      const item = this.build(index);
      this.items.set(index, item);
      this.list.insertBefore(item, next);
      this.sizes.observe(item);
    }

    remove(index) {
      this.sizes.unobserve(this.items.get(index));
      this.items.get(index).remove();
      this.items.delete(index);
    }

    // Makes this item anew, or all that are in the document.
    refresh(only = null) {
      if (only !== null && !this.items.has(only)) return;
      this.follow();
      for (const index of only === null ? this.items.keys() : [only]) this.remove(index);
      this.render();
    }

    select(chosen) {
      for (const [index, item] of this.items) item.classList.toggle("selected", index === chosen);
    }
  };
})();
