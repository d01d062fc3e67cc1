// The view of a trajectory: #/t/KEY?step=12&token=3&color=entropy&pane=rows
(() => {
  const { el, fill, count } = RT.dom;
  const { known, choice, choose, toggle } = RT.shown;
  const { PANES, colorsOf, stateOf } = RT.place;

  class View {
    constructor(params, element) {
      this.key = params.path[0];
      this.element = element;
      this.state = stateOf(params.query);
      this.closed = false;
    }

    async open() {
      const outline = await RT.data.trajectory(this.key);
      if (this.closed) return;
      this.build(outline);
      await this.apply(true);
    }

    close() {
      this.closed = true;
      if (this.scroller) this.scroller.close();
      if (this.painter) this.painter.close();
      if (this.finder) this.finder.close();
    }

    build(outline) {
      this.scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "conversation" });
      this.list = el("div", { class: "steps" });
      this.heading = el("header", { class: "heading" });
      this.scroll.append(this.heading, this.list);
      this.paneTitle = el("h1", { class: "unseen" });
      this.paneBody = el("div");
      this.pane = el("div", { class: "pane", tabindex: "0", role: "region", "aria-label": "pane", hidden: true }, this.paneTitle, this.paneBody);
      this.left = el("aside", { class: "left", tabindex: "0", "aria-label": "other trajectories" });
      this.right = el("aside", { class: "right", tabindex: "0", "aria-label": "details" });
      this.painter = new RT.tokens.Painter({
        root: this.scroll, color: this.state.color,
        onhover: (found) => this.hover(found),
        onpin: (found) => this.pin(found),
      });
      this.root = el("div", { class: "traj" }, this.toolbar(outline),
        el("div", { class: "traj-columns" }, this.left, el("div", { class: "middle" }, this.scroll, this.pane), this.right));
      this.take(outline);
      fill(this.element, this.root);
      this.scroller = new RT.scroller.Scroller({
        box: this.scroll, list: this.list, n: outline.steps.length,
        estimate: (i) => this.estimate(i), build: (i) => this.item(i), onview: (first) => this.viewed(first), first: this.state.step,
      });
    }

    toolbar(outline) {
      this.colors = choice("colour of tokens", colorsOf(outline), this.state.color, (color) => this.set({ color }));
      this.legend = el("div", { class: "legend-place" });
      this.panes = choice("pane", PANES, this.state.pane, (pane) => this.set({ pane }));
      this.reasoning = toggle("reasoning", "show reasoning (r)", true, () => this.set({ reasoning: !this.state.reasoning }));
      this.tools = toggle("tools", "show tool calls and results (o)", true, () => this.set({ tools: !this.state.tools }));
      this.read = toggle("read", "to read: Markdown, no tokens (m)", false, () => this.set({ read: !this.state.read }));
      this.position = el("span", { class: "soft num position" });
      this.finder = new RT.find.Finder({
        pages: () => this.pages, lines: () => this.outline.steps, go: (step) => this.goStep(step), root: this.list || this.scroll,
      });
      return el("div", { class: "toolbar", role: "toolbar", "aria-label": "view" },
        this.panes, this.colors, this.legend, el("span", { class: "toggles" }, this.reasoning.button, " ", this.tools.button, " ", this.read.button),
        this.finder.element, this.position);
    }

    /** Shows an outline: at the beginning, and when the file has changed. */
    take(outline) {
      const { summary } = outline;
      this.outline = outline;
      this.written = JSON.stringify(outline);
      this.pages = new RT.steps.Pages(this.key, outline.steps);
      this.context = RT.conversation.makeContext(outline, this.painter, (step) => this.goStep(step));
      this.context.reading = this.state.read;
      const rollout = known(summary.index) ? `rollout ${summary.index}` : null;
      const place = [summary.task || summary.group, rollout].filter(Boolean).join(" · ");
      RT.app.setTitle([summary.name || "agent", place].filter(Boolean).join(" · "));
      fill(this.heading, el("h1", {}, summary.name || "agent", " ", el("span", { class: "soft" }, place)),
        el("div", { class: "soft num sub" }, RT.details.subtitle(summary)),
        (outline.error || summary.error) && el("div", { class: "bad failure" }, outline.error || summary.error),
        summary.note && el("div", { class: "soft note-line" }, `note: ${summary.note}`),
        !outline.steps.length && el("p", { class: "empty" }, "This trajectory has no steps: no call of a model was recorded in it."));
      this.sides();
    }

    sides() {
      const { outline } = this;
      const loaded = (index) => this.pages.get(index);
      this.loaded = loaded;
      this.tokenPanel = RT.tokenDetail.panel(outline);
      this.time = RT.timeline.side(this.context, loaded);
      this.stepPanel = RT.details.step();
      const info = RT.app.info || {};
      this.editor = RT.edit.panel(this.key, outline.summary, Boolean(info.writable), (summary) => this.saved(summary));
      fill(this.right, this.tokenPanel.element, RT.rows.side(outline, this.context), this.time.element,
        RT.ratios.side(outline, (step, token) => this.goStep(step, token)),
        RT.details.findings(outline, this.context), this.editor.element, this.stepPanel.element, RT.details.about(outline));
      const family = RT.tree.family(outline);
      fill(this.left, family);
      this.root.classList.toggle("alone", !family);
      for (const loaded of [RT.tree.forks(outline, this.key), RT.tree.group(outline, this.key)]) {
        loaded.then((found) => {
          if (this.closed || this.outline !== outline || !found) return;
          this.left.append(found);
          this.root.classList.remove("alone");
        }, (error) => RT.app.banner(error));
      }
    }

    estimate(i) {
      const line = this.outline.steps[i];
      return 150 + Math.ceil((line.n_completion || 20) / 20) * 22;
    }

    item(i) {
      const line = this.outline.steps[i];
      const view = this.pages.get(i);
      const item = view ? RT.conversation.step(view, this.context) : RT.conversation.waiting(line, this.outline, this.failures && this.failures.get(i));
      item.classList.toggle("selected", i === this.state.step);
      if (!view && !(this.failures && this.failures.has(i))) this.fetch(i);
      return item;
    }

    async fetch(i) {
      const { pages } = this;
      try {
        await pages.load(i);
      } catch (error) {
        this.failures = (this.failures || new Map()).set(i, error.message);
      }
      if (!this.closed && pages === this.pages) this.scroller.refresh(i);
    }

    viewed(first) {
      this.first = first;
      const n = this.outline.steps.length;
      this.position.textContent = n ? `step ${count(first)} of ${count(n)}` : "";
      if (this.finder.query) requestAnimationFrame(() => this.finder.mark());
    }

    // What is chosen, and its address.

    set(change) {
      Object.assign(this.state, change);
      RT.app.replace(RT.place.address(this.key, this.state));
      return this.apply(false);
    }

    /** Makes the page as the state is; `jump`: the step is brought into sight. */
    async apply(jump) {
      const { state } = this;
      const n = this.outline.steps.length;
      if (state.step !== null && state.step >= n) {
        RT.app.banner(`This trajectory has no step ${state.step}: it has ${count(n)}, counted from 0.`);
        state.step = state.token = null;
      }
      choose(this.colors, state.color);
      choose(this.panes, state.pane);
      fill(this.legend, RT.tokens.legend(state.color));
      this.reasoning.set(state.reasoning);
      this.tools.set(state.tools);
      this.read.set(state.read);
      this.root.classList.toggle("reading", state.read);
      if (this.context.reading !== state.read) {
        this.context.reading = state.read;
        this.scroller.rebuild();
      }
      this.root.classList.toggle("hide-reasoning", !state.reasoning);
      this.root.classList.toggle("hide-tools", !state.tools);
      this.root.classList.toggle("mask-colors", state.color === "mask");
      this.root.dataset.pane = state.pane;
      if (this.painter.color !== state.color) this.painter.setColor(state.color);
      this.showPane();
      for (const [index, item] of this.scroller.items) item.classList.toggle("selected", index === state.step);
      if (jump && state.step !== null) this.scroller.show(state.step);
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
      fill(this.paneTitle, `${this.outline.summary.name || "agent"}: ${pane}`);
      if (pane === "rows") fill(this.paneBody, RT.rows.pane(this.outline, this.context));
      if (pane === "time") {
        const draw = () => fill(this.paneBody, RT.timeline.pane(this.context, step, this.loaded));
        draw();
        // Attempts are known of steps that are loaded.
        await this.pages.load(step).then(() => this.paneShown === shown && draw(), () => null);
      }
      if (pane === "raw") RT.details.raw(this.key, step, this.paneBody);
    }

    async showStep(jump) {
      const { step, token } = this.state;
      const index = step ?? 0;
      if (!this.outline.steps.length) return;
      this.stepPanel.update(this.pages.get(index), index);
      const pages = this.pages;
      const view = await pages.load(index).catch(() => null);
      if (this.closed || pages !== this.pages || (this.state.step ?? 0) !== index || this.state.token !== token) return;
      this.stepPanel.update(view, index);
      this.time.update(index);
      const there = view && view.tokens && token !== null && token < view.tokens.n;
      this.pinned = there ? { view, token, options: { mask: this.context.masks(view.line) } } : null;
      this.tokenPanel.show(this.pinned, Boolean(this.pinned));
      this.root.classList.toggle("token-kept", Boolean(this.pinned));
      if (jump && there) this.scroller.refresh(index);
      this.painter.pin(step, there ? token : null, { scroll: there && (jump || this.scrollToken) });
      this.scrollToken = false;
    }

    hover(found) {
      if (found) this.tokenPanel.show(found, false);
      else this.tokenPanel.show(this.pinned || null, Boolean(this.pinned));
    }

    pin(found) {
      const step = found.view.line.index;
      const same = !found.keyboard && this.state.step === step && this.state.token === found.token;
      this.scrollToken = Boolean(found.keyboard);
      this.set({ step, token: same ? null : found.token });
    }

    goStep(step, token = null) {
      Object.assign(this.state, { step, token });
      if (this.state.pane !== "conversation") this.state.pane = "conversation";
      RT.app.replace(RT.place.address(this.key, this.state));
      return this.apply(true);
    }

    move(way) {
      const n = this.outline.steps.length;
      if (!n) return;
      const from = this.state.step ?? (way > 0 ? this.first - 1 : this.first);
      this.goStep(Math.max(0, Math.min(n - 1, from + way)));
    }

    update(params) {
      this.state = stateOf(params.query);
      return this.apply(true);
    }

    async refresh() {
      const outline = await RT.data.trajectory(this.key);
      if (this.closed || this.editor.editing || JSON.stringify(outline) === this.written) return;
      this.failures = null;
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
      else RT.app.go(RT.neighbours.list());
    }

    edit() {
      if (!(RT.app.info || {}).writable) return void RT.app.banner("Nothing can be written here: the page was opened to read, or is a file.");
      if (this.state.pane !== "details" && !this.right.clientWidth) this.set({ pane: "details" });
      this.editor.open();
    }

    cycle() {
      const colors = colorsOf(this.outline);
      const at = colors.findIndex(([name]) => name === this.state.color);
      this.set({ color: colors[(at + 1) % colors.length][0] });
    }
  }

  let view = null;

  const keys = [
    { key: "j", label: "next step", run: () => view && view.scroller && view.move(1) },
    { key: "k", label: "previous step", run: () => view && view.scroller && view.move(-1) },
    { key: "n", label: "next trajectory of the list", run: () => view && RT.neighbours.go(view.key, 1) },
    { key: "p", label: "previous trajectory of the list", run: () => view && RT.neighbours.go(view.key, -1) },
    { key: "t", label: "next colouring of tokens", run: () => view && view.scroller && view.cycle() },
    { key: "r", label: "reasoning on or off", run: () => view && view.scroller && view.set({ reasoning: !view.state.reasoning }) },
    { key: "o", label: "tool calls and results on or off", run: () => view && view.scroller && view.set({ tools: !view.state.tools }) },
    { key: "m", label: "reading mode: Markdown, no tokens", run: () => view && view.scroller && view.set({ read: !view.state.read }) },
    { key: "e", label: "edit reward and note", run: () => view && view.scroller && view.edit() },
    { key: "/", label: "search this trajectory", run: () => view && view.finder && view.finder.input.focus() },
    { key: "Escape", label: "let go of the token, or back to the list", run: () => view && view.scroller && view.escape() },
    { key: "ArrowLeft", label: "with a token chosen: the token before; → the one after" },
  ];

  RT.app.route("t", {
    async open(params, element) {
      view = new View(params, element);
      await view.open();
    },
    close() {
      if (view) view.close();
      view = null;
    },
    update: (params) => view && view.scroller && view.update(params),
    refresh: (info) => view && view.scroller && view.refresh(info),
    keys,
  });
})();
