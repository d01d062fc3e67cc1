// A list of any length, of which the part near the visible one is in the document.
//
// Heights are estimated until they are measured. What is at the top stays where it is while heights above it change.
RT.scroller = (() => {
  const OVER = 500;
  const MOST = 60;
  const FAR = 1e7;
  // What stands above the list is in sight.
  const TOP = { index: 0, offset: -Infinity };

  class Scroller {
    // box: the scrolled element; list: the element in it that gets the items; estimate(i): pixels; build(i): an
    // element; onview(first, last): called with the items that can be seen; first: the item that is shown first, or null.
    constructor({ box, list, n, estimate, build, onview, first = null }) {
      Object.assign(this, { box, list, build, onview, estimate });
      this.before = document.createElement("div");
      this.after = document.createElement("div");
      this.items = new Map();
      this.anchor = TOP;
      this.frame = 0;
      list.replaceChildren(this.before, this.after);
      this.sizes = new ResizeObserver((entries) => this.measured(entries));
      this.sizes.observe(box);
      this.onscroll = () => this.scrolled();
      box.addEventListener("scroll", this.onscroll, { passive: true });
      this.onkey = (event) => this.key(event);
      box.addEventListener("keydown", this.onkey);
      if (first > 0 && first < n) this.anchor = { index: first, offset: -8 };
      this.resize(n);
    }

    close() {
      this.sizes.disconnect();
      this.box.removeEventListener("scroll", this.onscroll);
      this.box.removeEventListener("keydown", this.onkey);
      cancelAnimationFrame(this.frame);
    }

    // The list has `n` items now; heights that were measured are kept.
    resize(n) {
      const heights = new Float64Array(n);
      for (let i = 0; i < n; i += 1) heights[i] = this.heights && i < this.n ? this.heights[i] : this.estimate(i);
      this.n = n;
      if (this.anchor.index >= n) this.anchor = TOP;
      this.heights = heights;
      this.tops = new Float64Array(n + 1);
      this.sum(0);
      this.rebuild();
    }

    sum(from) {
      for (let i = from; i < this.n; i += 1) this.tops[i + 1] = this.tops[i] + this.heights[i];
    }

    at(y) {
      let low = 0;
      let high = this.n - 1;
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (this.tops[middle] <= y) low = middle;
        else high = middle - 1;
      }
      return low;
    }

    get start() {
      return this.list.offsetTop;
    }

    scrolled() {
      if (this.follow()) this.render();
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
      const y = this.box.scrollTop - this.start;
      const index = this.at(Math.max(0, y));
      this.anchor = this.box.scrollTop <= 0 ? TOP : { index, offset: y - this.tops[index] };
      return true;
    }

    // Puts an item at the top, `offset` pixels below the edge.
    show(index, offset = 8) {
      if (!this.n) return;
      const wanted = Math.max(0, Math.min(this.n - 1, index));
      this.anchor = wanted === 0 ? TOP : { index: wanted, offset: -offset };
      this.render();
    }

    // Whether the item's beginning can be seen.
    visible(index) {
      const y = this.tops[index] + this.start - this.box.scrollTop;
      return this.items.has(index) && y >= -1 && y < this.box.clientHeight - 40;
    }

    settle() {
      const wanted = Math.max(0, this.tops[this.anchor.index] + this.anchor.offset + this.start);
      if (Math.abs(this.box.scrollTop - wanted) >= 1) this.box.scrollTop = wanted;
      this.expected = this.box.scrollTop;
    }

    render() {
      if (!this.n) return;
      const height = this.box.clientHeight || 800;
      const wanted = this.tops[this.anchor.index] + this.anchor.offset;
      const y = Math.max(-this.start, Math.min(wanted, this.tops[this.n] - height));
      const first = this.at(Math.max(0, y - OVER));
      const last = Math.min(this.at(Math.max(0, y + height + OVER)), first + MOST - 1);
      for (const [index, item] of this.items) {
        if (index < first || index > last) this.remove(index, item);
      }
      let next = this.after;
      for (let i = last; i >= first; i -= 1) {
        let item = this.items.get(i);
        if (!item) {
          item = this.build(i);
          this.items.set(i, item);
          this.list.insertBefore(item, next);
          this.sizes.observe(item);
        }
        next = item;
      }
      this.range = [first, last];
      this.space();
      this.measure();
      this.settle();
      this.onview(this.at(Math.max(0, y + 12)), this.at(Math.max(0, y + height)));
    }

    space() {
      if (!this.range) return;
      this.before.style.height = `${this.tops[this.range[0]]}px`;
      this.after.style.height = `${this.tops[this.n] - this.tops[this.range[1] + 1]}px`;
    }

    measure() {
      let from = this.n;
      for (const [index, item] of this.items) {
        const height = item.getBoundingClientRect().height;
        if (height && Math.abs(height - this.heights[index]) > 0.5) {
          this.heights[index] = height;
          from = Math.min(from, index);
        }
      }
      if (from < this.n) {
        this.sum(from);
        this.space();
      }
      return from < this.n;
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

    remove(index, item) {
      this.sizes.unobserve(item);
      item.remove();
      this.items.delete(index);
    }

    // Makes one item anew, or all that are in the document.
    refresh(index) {
      const item = this.items.get(index);
      if (!item) return;
      this.follow();
      this.remove(index, item);
      this.render();
    }

    rebuild() {
      this.follow();
      for (const [index, item] of this.items) this.remove(index, item);
      this.render();
    }
  }

  return { Scroller };
})();
