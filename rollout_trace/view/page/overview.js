// The overview: the list of trajectories with its filters, or their groups, and charts of what is shown.
(() => {
  const { el, fill, number, short, count, duration, cost, time, remembered, remember } = RT.dom;
  const PAGE = 100;
  const TYPING_PAUSE = 150;

  let parts = null; // nodes that are filled
  let state = null; // {q, sort, reverse, view, page, order, differing}
  let shown = { list: null, aggregate: null };
  let turn = 0;
  let typed = 0;
  let moreFindings = false;

  function readState(query) {
    const sort = query.sort || "";
    return {
      q: query.q || "", sort: sort.replace(/^-/, ""), reverse: sort.startsWith("-"),
      view: query.view === "groups" ? "groups" : "table", page: Math.max(0, (parseInt(query.page, 10) || 1) - 1),
      order: query.order || "", differing: query.differing === "1",
    };
  }

  function address(s) {
    return RT.app.hash("", [], {
      q: s.q, sort: s.sort && (s.reverse ? "-" : "") + s.sort, view: s.view === "groups" ? "groups" : null,
      page: s.page ? s.page + 1 : null, order: s.order, differing: s.differing ? "1" : null,
    });
  }

  /** Goes to a changed state; a change of the query begins at its first page. */
  function change(changes) {
    const begins = "q" in changes || "sort" in changes;
    RT.app.go(address({ ...state, page: begins ? 0 : state.page, ...changes }));
  }

  const changeQuery = (q) => change({ q });

  // Drawing.

  function drawFrame(element) {
    const search = el("input", {
      class: "field search", type: "search", placeholder: "Search: words, or reward > 0.5 and \"timeout\" in lower(error)", "aria-label": "search",
      spellcheck: "false", autocomplete: "off", "aria-describedby": "problems", on: { input: typing, keydown: searchKey },
    });
    const view = (name, label) =>
      el("button", { data: { view: name }, on: { click: () => change({ view: name, page: 0 }) } }, label);
    parts = {
      element, search,
      chips: el("div", { class: "slot" }), problems: el("div", { class: "problems", id: "problems", role: "status" }),
      figures: el("div", { class: "slot" }), tallies: el("div", { class: "slot" }), charts: el("div", { class: "slot" }),
      body: el("div", { class: "body" }), pager: el("nav", { class: "pager", "aria-label": "pages" }),
      views: el("div", { class: "segments", role: "group", "aria-label": "view" },
        view("table", "List"), view("groups", "Groups")),
      chartsButton: el("button", { class: "button", on: { click: toggleCharts } }, "Charts"),
      columnsButton: el("button", { class: "button", on: { click: () => RT.table.chooseColumns(drawBody) } }, "Columns"),
      exportButton: el("button", { class: "button", title: "the commands that write what is shown", on: { click: () => RT.filters.exporting(state.q) } }, "Export"),
    };
    fill(element, el("h1", { class: "unseen" }, "Trajectories"),
      el("div", { class: "toolbar" }, search, parts.views, parts.chartsButton, parts.columnsButton, parts.exportButton),
      parts.problems, parts.chips, parts.figures, parts.tallies, parts.charts, parts.body, parts.pager);
  }

  function drawControls() {
    // What is being typed is newer than what comes.
    if (document.activeElement !== parts.search) parts.search.value = state.q;
    for (const button of parts.views.children) {
      button.setAttribute("aria-pressed", String(button.dataset.view === state.view));
    }
    parts.chartsButton.setAttribute("aria-pressed", String(chartsOpen()));
    parts.columnsButton.hidden = state.view === "groups";
    fill(parts.chips, RT.filters.chips(state.q, changeQuery));
  }

  const chartsOpen = () => remembered("charts", window.innerWidth > 700);

  function toggleCharts() {
    remember("charts", !chartsOpen());
    drawControls();
    drawCharts();
  }

  function drawAggregate() {
    const { aggregate, list } = shown;
    fill(parts.figures, list.total ? RT.filters.figures(aggregate, list.total) : null);
    fill(parts.tallies, RT.filters.tallies(aggregate, state.q, changeQuery, {
      open: moreFindings, toggle: () => {
        moreFindings = !moreFindings;
        drawAggregate();
      },
    }));
    drawCharts();
  }

  function drawCharts() {
    const { aggregate } = shown;
    if (RT.charts.busy()) return;
    if (!aggregate || !aggregate.n || !chartsOpen()) return void fill(parts.charts);
    const range = (name, written = (x) => x) => (low, high, closed) =>
      changeQuery(RT.search.setRange(state.q, name, written(low), written(high), closed));
    const bars = (title, field, format) => RT.charts.histogram({
      title, data: aggregate.histograms[field], format, choose: range(field === "steps" ? "n_steps" : field),
    });
    const clock = sameDay(aggregate.over_time) ? (t) => time(t).slice(11) : (t) => time(t).slice(0, 10);
    fill(parts.charts, el("section", { class: "charts", "aria-label": "charts" },
      bars("Reward", "reward", number), bars("Tokens", "tokens", short), bars("Steps", "steps", short),
      bars("Time", "seconds", duration), bars("Cost", "cost", (x) => cost(x, aggregate.currency)),
      RT.charts.overTime({
        title: "Reward over time", points: aggregate.over_time, format: clock, choose: range("started_at", (t) => new Date(t * 1000).toISOString().slice(0, 19)),
      })));
  }

  const day = ([started]) => time(started).slice(0, 10);

  const sameDay = (points) => points.length && day(points[0]) === day(points[points.length - 1]);

  function drawBody() {
    const { list, aggregate } = shown;
    if (!list.matched) fill(parts.body, emptiness(list));
    else if (state.view === "groups") {
      fill(parts.body, RT.groups.draw({
        aggregate, options: state, change,
        choose: ({ by, group }) => change({ q: `${by} == ${JSON.stringify(group)}`, view: "table" }),
      }));
    } else {
      fill(parts.body, RT.table.draw(list.rows, {
        sort: state.sort, reverse: state.reverse, rewards: [aggregate.least_reward, aggregate.most_reward],
        sortBy: (field) => change(RT.table.nextSort(field, state.sort, state.reverse)),
      }));
    }
    drawPager();
  }

  function emptiness(list) {
    const info = RT.app.info;
    if (list.total) {
      return el("div", { class: "empty" }, el("h1", {}, "No trajectory matches"),
        el("p", {}, "Nothing that was recorded fits the filter."),
        el("button", { class: "button", on: { click: () => changeQuery("") } }, "Clear the filter"));
    }
    if (info.indexing) {
      return el("div", { class: "empty" }, el("h1", {}, "Reading the files"),
        el("p", {}, "Trajectories appear here as they are found."));
    }
    const names = (info.files || []).map((file) => file.name).join(", ");
    return el("div", { class: "empty" }, el("h1", {}, "No trajectory yet"),
      el("p", {}, names ? `There is none in ${names}.` : "There is none in what was given.",
        info.static ? "" : " This page shows the first one as soon as it is recorded."));
  }

  const pageCount = () =>
    (state.view === "groups" ? RT.groups.pages(shown.aggregate, state) : Math.ceil(shown.list.matched / PAGE));

  function drawPager() {
    const { list } = shown;
    const pages = pageCount();
    const last = Math.min(list.matched, (state.page + 1) * PAGE);
    if (pages < 2) return void fill(parts.pager);
    const to = (page, label, name) => el("button", {
      class: "button", "aria-label": name, disabled: page < 0 || page >= pages, on: { click: () => change({ page }) },
    }, label);
    fill(parts.pager,
      to(state.page > 0 ? 0 : -1, "« first", "first page"), to(state.page - 1, "‹", "previous page"),
      el("span", { class: "num" }, state.view === "groups" ? `page ${count(state.page + 1)} of ${count(pages)}`
        : `${count(state.page * PAGE + 1)} to ${count(last)} of ${count(list.matched)}`),
      to(state.page + 1, "›", "next page"), to(state.page < pages - 1 ? pages - 1 : pages, "last »", "last page"));
  }

  // Loading.

  async function load({ aggregateToo = true } = {}) {
    const mine = ++turn;
    parts.element.setAttribute("aria-busy", "true");
    try {
      const list = await RT.data.list({
        query: state.q, sort: state.sort, reverse: state.reverse, limit: PAGE,
        offset: state.view === "groups" ? 0 : state.page * PAGE,
      });
      const aggregate = aggregateToo || !shown.aggregate ? await RT.data.aggregate({ query: state.q }) : shown.aggregate;
      if (mine !== turn || !parts) return;
      shown = { list, aggregate };
      if (state.page && state.page >= pageCount()) {
        // Fewer match than when the address was made.
        state.page = Math.max(0, pageCount() - 1);
        RT.app.replace(address(state));
        return void (await load({ aggregateToo: false }));
      }
      fill(parts.problems, list.problems.map((problem) => el("p", {}, problem)));
      RT.dom.keepFocus(parts.element, () => {
        drawControls();
        drawAggregate();
        drawBody();
      });
    } finally {
      if (mine === turn && parts) parts.element.removeAttribute("aria-busy");
    }
  }

  function typing() {
    window.clearTimeout(typed);
    typed = window.setTimeout(() => {
      state = { ...state, q: parts.search.value, page: 0 };
      RT.app.replace(address(state));
      load().catch((error) => RT.app.banner(error));
    }, TYPING_PAUSE);
  }

  function searchKey(event) {
    if (event.key === "Escape") {
      // It leaves the box; the browser would empty it.
      event.preventDefault();
      parts.search.blur();
    } else if (event.key === "Enter" || event.key === "ArrowDown") {
      event.preventDefault();
      focusLine(0);
    }
  }

  // Moving over the lines.

  const lines = () => [...parts.body.querySelectorAll("[data-key]")];

  function focusLine(i) {
    const line = lines()[i];
    if (!line) return;
    line.querySelector(".open").focus({ preventScroll: true });
    line.scrollIntoView({ block: "nearest" });
  }

  function move(by) {
    if (!shown.list) return;
    const at = lines().findIndex((line) => line.contains(document.activeElement));
    const next = at < 0 ? (by > 0 ? 0 : lines().length - 1) : at + by;
    if (next >= lines().length && state.page + 1 < pageCount()) turnPage(1, () => 0);
    else if (next < 0 && state.page > 0) turnPage(-1, () => lines().length - 1);
    else focusLine(next);
  }

  async function turnPage(by, line) {
    state = { ...state, page: state.page + by };
    RT.app.replace(address(state));
    try {
      await load({ aggregateToo: false });
      focusLine(line());
    } catch (error) {
      RT.app.banner(error);
    }
  }

  function focusSearch() {
    parts.search.focus();
    parts.search.select();
  }

  RT.app.route("", {
    async open({ query }, element) {
      state = readState(query);
      shown = { list: null, aggregate: null };
      drawFrame(element);
      drawControls();
      fill(parts.body, el("p", { class: "empty" }, "Loading"));
      await load();
    },
    async update({ query }) {
      window.clearTimeout(typed);
      const before = state;
      state = readState(query);
      if (before.q !== state.q) parts.search.value = state.q;
      await load({ aggregateToo: before.q !== state.q });
      if (before.page !== state.page) document.getElementById("main").scrollTop = 0;
    },
    refresh: () => load(),
    close() {
      window.clearTimeout(typed);
      turn += 1;
      parts = null;
    },
    keys: [
      { key: "/", label: "search", run: focusSearch },
      { key: "j", label: "next line", run: () => move(1) },
      { key: "k", label: "line before", run: () => move(-1) },
      { key: "ArrowDown", label: "next line", run: () => move(1) },
      { key: "ArrowUp", label: "line before", run: () => move(-1) },
      { key: "Enter", label: "open the trajectory" },
      { key: "g", label: "groups, or the list", run: () => change({ view: state.view === "groups" ? "table" : "groups", page: 0 }) },
      { key: "c", label: "charts", run: toggleCharts },
      { key: "x", label: "clear the filter", run: () => changeQuery("") },
    ],
    help: RT.filters.help,
  });
})();
