// The view of a trajectory: #/t/KEY?step=12&token=3&color=entropy&pane=rows
(() => {
  const { PANES, colorsOf } = RT.places;

  class View extends RT.ChosenStep {
    async open() {
      [this.key] = this.path;
      const outline = await RT.data.trajectory(this.key);
      if (this.closed) return;
      this.build(outline);
      await this.apply(true);
    }

    build(outline) {
      this.heading = el("header.heading");
      const list = el("div.steps");
      const region = { tabindex: "0", role: "region" };
      this.scroll = el("div.scroll", { ...region, "aria-label": "conversation" }, this.heading, list);
      this.paneTitle = el("h1.unseen");
      this.paneBody = el("div");
      this.pane = el("div.pane", { ...region, "aria-label": "pane", hidden: true }, this.paneTitle, this.paneBody);
      this.left = el("aside.left", { tabindex: "0", "aria-label": "other trajectories" });
      this.right = el("aside.right", { tabindex: "0", "aria-label": "details" });
      this.painters = [new RT.tokens.Painter({
        root: this.scroll, color: this.state.color,
        onhover: (found) => this.hover(found), onpin: (found) => this.pin(found),
      })];
      this.root = el("div.traj", this.toolbar(outline, list),
        el("div.traj-columns", this.left, el("div.middle", this.scroll, this.pane), this.right));
      this.take(outline);
      fill(this.element, this.root);
      this.buildScroller(this.scroll, list, outline.steps.length, (i) => this.estimate(i), (i) => this.item(i));
    }

    toolbar(outline, list) {
      this.buildColors(colorsOf(outline));
      this.panes = choice("pane", Object.entries(PANES), (pane) => this.set({ pane }));
      const titles = {
        reasoning: "show reasoning (r)",
        tools: "show tool calls and results (o)",
        read: "to read: Markdown, no tokens (m)",
      };
      this.toggles = Object.entries(titles).map(([name, title]) => [name, toggle(name, title, () => this.flip(name))]);
      this.position = el("span.soft.num.position");
      this.finder = new RT.Finder({
        pages: () => this.pages, lines: () => this.outline.steps, go: (step) => this.goStep(step), root: list,
      });
      return el("div.toolbar", { role: "toolbar", "aria-label": "view" }, this.panes, this.colors, this.legend,
        el("span.toggles", this.toggles.map(([, button], i) => [i > 0 && " ", button])),
        this.finder.element, this.position);
    }

    /** Shows an outline: at the beginning, and when the file has changed. */
    take(outline) {
      const { summary, steps } = outline;
      this.outline = outline;
      this.written = JSON.stringify(outline);
      this.failures = new Map();
      this.pages = new RT.Pages(this.key, steps);
      this.loaded = (index) => this.pages.get(index);
      this.context = RT.conversation.makeContext(outline, this.painters[0], (step) => this.goStep(step));
      this.context.reading = this.state.read;
      const place = RT.details.placeOf(summary);
      const error = outline.error || summary.error;
      RT.app.setTitle(dotted([summary.name, place]));
      fill(this.heading, el("h1", summary.name, " ", soft(place)),
        el("div.soft.num.sub", RT.details.subtitle(summary)),
        error && el("div.bad.failure", error),
        summary.note && el("div.soft.note-line", `note: ${summary.note}`),
        !steps.length && el("p.empty", "This trajectory has no steps: no call of a model was recorded in it."));
      this.sides();
    }

    sides() {
      const { outline, context } = this;
      this.tokenPanel = RT.tokens.panel(outline);
      this.time = RT.timeline.side(context, this.loaded);
      this.stepPanel = RT.details.step();
      const { writable } = RT.app.info;
      this.editor = RT.details.editor(this.key, outline.summary, writable, (summary) => this.saved(summary));
      fill(this.right, this.tokenPanel.element, RT.rows.side(context), this.time.element,
        RT.charts.ratios(outline.ratios, (step, token) => this.goStep(step, token)),
        RT.details.findings(context), this.editor.element, this.stepPanel.element, RT.details.about(outline));
      const family = RT.tree.family(outline);
      fill(this.left, family);
      this.root.classList.toggle("alone", !family);
      for (const others of [RT.tree.forks(outline, this.key), RT.tree.group(outline, this.key)]) {
        others.then((found) => {
          if (this.closed || this.outline !== outline || !found) return;
          this.left.append(found);
          this.root.classList.remove("alone");
        }, RT.app.banner);
      }
    }

    estimate(i) {
      return 150 + Math.ceil((this.outline.steps[i].n_completion || 20) / 20) * 22;
    }

    item(i) {
      const view = this.pages.get(i);
      const problem = this.failures.get(i);
      if (!view && !problem) this.fetch(i);
      const item = view ? RT.conversation.step(view, this.context)
        : RT.conversation.waiting(this.outline.steps[i], this.outline, problem);
      item.classList.toggle("selected", i === this.state.step);
      return item;
    }

    async fetch(i) {
      const { pages, failures } = this;
      await pages.load(i).catch((error) => failures.set(i, error.message));
      if (!this.closed && pages === this.pages) this.scroller.refresh(i);
    }

    viewed(first) {
      super.viewed(first);
      this.position.textContent = `step ${count(first)} of ${count(this.outline.steps.length)}`;
      if (this.finder.query) requestAnimationFrame(() => this.finder.mark());
    }

    // What is chosen, and its address.

    flip(name) {
      return this.set({ [name]: !this.state[name] });
    }

    async apply(jump) {
      const { state } = this;
      const n = this.outline.steps.length;
      if (state.step !== null && state.step >= n) {
        RT.app.banner(`This trajectory has no step ${state.step}: it has ${count(n)}, counted from 0.`);
        state.step = state.token = null;
      }
      choose(this.panes, state.pane);
      for (const [name, button] of this.toggles) press(button, state[name]);
      const classes = {
        reading: state.read, "hide-reasoning": !state.reasoning, "hide-tools": !state.tools,
        "mask-colors": state.color === "mask",
      };
      for (const [name, on] of Object.entries(classes)) this.root.classList.toggle(name, on);
      if (this.context.reading !== state.read) {
        this.context.reading = state.read;
        this.scroller.refresh();
      }
      this.root.dataset.pane = state.pane;
      this.showPane();
      this.showChosen(jump);
      this.time.update(state.step ?? 0);
      await this.showStep(jump);
    }

    async showPane() {
      const { pane } = this.state;
      this.pane.hidden = pane === "conversation" || pane === "details";
      this.scroll.inert = !this.pane.hidden;
      const step = this.state.step ?? 0;
      const shown = `${pane} ${pane === "rows" ? "" : step}`;
      if (this.pane.hidden || (this.paneShown === shown && this.paneOutline === this.outline)) return;
      [this.paneShown, this.paneOutline] = [shown, this.outline];
      this.pane.setAttribute("aria-label", `${pane} of the trajectory`);
      fill(this.paneTitle, `${this.outline.summary.name}: ${pane}`);
      if (pane === "rows") fill(this.paneBody, RT.rows.pane(this.context));
      if (pane === "raw") RT.details.raw(this.key, step, this.paneBody);
      if (pane !== "time") return;
      const draw = () => fill(this.paneBody, RT.timeline.pane(this.context, step, this.loaded));
      draw();
      // Attempts are known of steps that are loaded.
      await this.pages.load(step).then(() => this.paneShown === shown && draw(), () => null);
    }

    async showStep(jump) {
      const { step, token } = this.state;
      const index = step ?? 0;
      if (!this.outline.steps.length) return;
      const { pages } = this;
      this.stepPanel.update(pages.get(index), index);
      const view = await pages.load(index).catch(() => null);
      if (this.closed || pages !== this.pages || (this.state.step ?? 0) !== index || this.state.token !== token) return;
      this.stepPanel.update(view, index);
      this.time.update(index);
      const there = view && view.tokens && token !== null && token < view.tokens.n;
      this.pinned = there ? { view, token, options: { mask: this.context.masks(view.line) } } : null;
      this.hover(null);
      this.root.classList.toggle("token-kept", Boolean(there));
      if (jump && there) this.scroller.refresh(index);
      this.painters[0].pin(step, there ? token : null, jump || this.scrollToken);
      this.scrollToken = false;
    }

    /** Shows what is known of a token; null: of the one that is kept. */
    hover(found) {
      this.tokenPanel.show(found || this.pinned, !found && Boolean(this.pinned));
    }

    pin({ view, token, keyboard = false }) {
      const step = view.line.index;
      const same = !keyboard && this.state.step === step && this.state.token === token;
      this.scrollToken = keyboard;
      this.set({ step, token: same ? null : token }, false);
    }

    goStep(step, token = null) {
      return this.set({ step, token, pane: "conversation" });
    }

    async refresh() {
      if (!this.scroller) return;
      const outline = await RT.data.trajectory(this.key);
      if (this.closed || this.editor.isOpen() || JSON.stringify(outline) === this.written) return;
      this.take(outline);
      this.scroller.resize(outline.steps.length);
      await this.apply(false);
    }

    saved(summary) {
      this.outline = { ...this.outline, summary };
      fill(this.heading.querySelector(".sub"), RT.details.subtitle(summary));
    }

    escape() {
      if (this.state.token !== null) this.set({ token: null });
      else if (this.state.pane !== "conversation") this.set({ pane: "conversation" });
      else RT.app.go(RT.places.list());
    }

    edit() {
      if (!this.scroller) return;
      if (!RT.app.info.writable) {
        return void RT.app.banner("Nothing can be written here: the page was opened to read, or is a file.");
      }
      if (this.state.pane !== "details" && !this.right.clientWidth) this.set({ pane: "details" });
      this.editor.open();
    }

    cycle() {
      const colors = colorsOf(this.outline);
      this.set({ color: colors[(colors.indexOf(this.state.color) + 1) % colors.length] });
    }

    keys = [
      { key: "j", label: "next step", run: () => this.move(1) },
      { key: "k", label: "previous step", run: () => this.move(-1) },
      { key: "n", label: "next trajectory of the list", run: () => RT.places.go(this.key, 1) },
      { key: "p", label: "previous trajectory of the list", run: () => RT.places.go(this.key, -1) },
      { key: "t", label: "next colouring of tokens", run: () => this.scroller && this.cycle() },
      { key: "r", label: "reasoning on or off", run: () => this.flip("reasoning") },
      { key: "o", label: "tool calls and results on or off", run: () => this.flip("tools") },
      { key: "m", label: "reading mode: Markdown, no tokens", run: () => this.flip("read") },
      { key: "e", label: "edit reward and note", run: () => this.edit() },
      { key: "/", label: "search this trajectory", run: () => this.finder && this.finder.input.focus() },
      { key: "Escape", label: "let go of the token, or back to the list", run: () => this.escape() },
      { key: "ArrowLeft", label: "with a token chosen: the token before; → the one after" },
    ];
  }

  RT.app.route("t", (params, element) => new View("t", params, element));
})();
