// What the views of one trajectory and of two have in common: a scrolled list of steps of which one is chosen, the
// colours of tokens, and the address that says both. They have apply(jump), which makes the page as `state` is; `jump`:
// the step comes into sight.
RT.ChosenStep = class {
  constructor(name, { path, query }, element) {
    Object.assign(this, { name, path, element, state: RT.places.stateOf(query) });
  }

  close() {
    this.closed = true;
    for (const part of [this.scroller, this.finder, ...(this.painters || [])]) if (part) part.close();
  }

  buildColors(colors) {
    this.colors = choice("colour of tokens", colors, (color) => this.set({ color }));
    this.legend = el("div.legend-place");
  }

  buildScroller(box, list, n, estimate, build) {
    const onview = (first) => this.viewed(first);
    this.scroller = new RT.Scroller({ box, list, n, first: this.state.step, estimate, build, onview });
  }

  viewed(first) {
    this.first = first;
  }

  set(change, jump = "step" in change) {
    if (!this.scroller) return;
    Object.assign(this.state, change);
    RT.app.replace(RT.places.address(this.name, this.path, this.state));
    return this.apply(jump);
  }

  update({ query }) {
    this.state = RT.places.stateOf(query);
    return this.scroller && this.apply(true);
  }

  /** The step, or the one that is nearest to it. */
  nearest(step) {
    return Math.max(0, Math.min(this.scroller.n - 1, step));
  }

  goStep(step) {
    return this.set({ step: this.nearest(step) });
  }

  move(way) {
    if (!this.scroller || !this.scroller.n) return;
    this.goStep(this.nearest((this.state.step ?? (way > 0 ? this.first - 1 : this.first)) + way));
  }

  showChosen(jump) {
    const { step, color } = this.state;
    choose(this.colors, color);
    fill(this.legend, RT.tokens.legend(color));
    for (const painter of this.painters) if (painter.color !== color) painter.setColor(color);
    this.scroller.select(step);
    if (jump && step !== null) this.scroller.show(step);
  }
};
