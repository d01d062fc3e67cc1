// The overview: the list of trajectories with its filters, or their groups, and charts of what is shown.
RT.app.route("", ({ query: asked }, element) => {
  const PAGE = 100;
  const TYPING_PAUSE = 150;

  let state = readState(asked); // {q, sort, reverse, view, page, order, differing}
  let shown = { list: null, aggregate: null };
  let turn = 0;
  let typed = 0;
  let moreFindings = false;

  function readState(query) {
    return {
      q: query.q || "", ...RT.places.orderOf(query), page: Math.max(0, (parseInt(query.page, 10) || 1) - 1),
      view: query.view === "groups" ? "groups" : "table", order: query.order || "", differing: query.differing === "1",
    };
  }

  const address = (s) => RT.app.hash("", [], {
    q: s.q, sort: s.sort && (s.reverse ? "-" : "") + s.sort, view: s.view === "groups" ? "groups" : null,
    page: s.page ? s.page + 1 : null, order: s.order, differing: s.differing ? "1" : null,
  });

  /** Goes to a changed state; a change of what is listed begins at its first page. */
  function change(changes) {
    const begins = ["q", "sort", "view"].some((name) => name in changes);
    RT.app.go(address({ ...state, page: begins ? 0 : state.page, ...changes }));
  }

  const changeQuery = (q) => change({ q });
  const changeView = () => change({ view: state.view === "groups" ? "table" : "groups" });

  // Drawing.

  const search = el("input.field.search", {
    type: "search", placeholder: "Search: words, or reward > 0.5 and \"timeout\" in lower(error)",
    "aria-label": "search", spellcheck: "false", autocomplete: "off", "aria-describedby": "problems",
    on: { input: typing, keydown: searchKey },
  });
  const views = choice("view", [["table", "List"], ["groups", "Groups"]], (view) => change({ view }));
  const button = (label, run, title) => el("button.button", { title, on: { click: run } }, label);
  const chartsButton = button("Charts", toggleCharts);
  const columnsButton = button("Columns", () => RT.table.chooseColumns(drawBody));
  const exportButton = button("Export", () => RT.filters.exporting(state.q), "the commands that write what is shown");
  const problems = el("div.problems", { id: "problems", role: "status" });
  const [chips, figures, tallies, charts] = Array.from({ length: 4 }, () => el("div.slot"));
  const body = el("div.body", el("p.empty", "Loading"));
  const pager = el("nav.pager", { "aria-label": "pages" });

  function drawControls() {
    // What is being typed is newer than what comes.
    if (document.activeElement !== search) search.value = state.q;
    choose(views, state.view);
    press(chartsButton, chartsOpen());
    columnsButton.hidden = state.view === "groups";
    fill(chips, RT.filters.chips(state.q, changeQuery));
  }

  const chartsOpen = () => remembered("charts", window.innerWidth > 700);

  function toggleCharts() {
    remember("charts", !chartsOpen());
    drawControls();
    drawCharts();
  }

  function drawAggregate() {
    const { aggregate, list } = shown;
    fill(figures, list.total > 0 && RT.filters.figures(aggregate, list.total));
    fill(tallies, RT.filters.tallies(aggregate, state.q, changeQuery, { open: moreFindings, toggle: toggleFindings }));
    drawCharts();
  }

  function toggleFindings() {
    moreFindings = !moreFindings;
    drawAggregate();
  }

  function drawCharts() {
    const { aggregate } = shown;
    if (RT.charts.busy()) return;
    if (!aggregate || !aggregate.n || !chartsOpen()) return void fill(charts);
    const range = (name, written = (x) => x) => (low, high, closed) =>
      changeQuery(RT.search.setRange(state.q, name, written(low), written(high), closed));
    const bars = (title, field, format) => RT.charts.histogram({
      title, data: aggregate.histograms[field], format, choose: range(field === "steps" ? "n_steps" : field),
    });
    const points = aggregate.over_time;
    const days = new Set([points.at(0), points.at(-1)].map((point) => point && time(point[0]).slice(0, 10)));
    const clock = days.size === 1 ? (t) => time(t).slice(11) : (t) => time(t).slice(0, 10);
    fill(charts, el("section.charts", { "aria-label": "charts" },
      bars("Reward", "reward", number), bars("Tokens", "tokens", short), bars("Steps", "steps", short),
      bars("Time", "seconds", duration), bars("Cost", "cost", (x) => cost(x, aggregate.currency)),
      RT.charts.overTime({
        title: "Reward over time", points, format: clock,
        choose: range("started_at", (t) => new Date(t * 1000).toISOString().slice(0, 19)),
      })));
  }

  function drawBody() {
    const { list, aggregate } = shown;
    if (!list.matched) fill(body, emptiness(list));
    else if (state.view === "groups") {
      fill(body, RT.groups.draw({
        groups: aggregate.groups, options: state, change,
        choose: ({ by, group }) => change({ q: `${by} == ${JSON.stringify(group)}`, view: "table" }),
      }));
    } else {
      fill(body, RT.table.draw(list.rows, {
        sort: state.sort, reverse: state.reverse, rewards: aggregate.rewards,
        sortBy: (field) => change(RT.table.nextSort(field, state.sort, state.reverse)),
      }));
    }
    drawPager();
  }

  function emptiness(list) {
    const { info } = RT.app;
    const nothing = (title, why, ...more) => el("div.empty", el("h1", title), el("p", why), more);
    if (list.total) {
      return nothing("No trajectory matches", "Nothing that was recorded fits the filter.",
        button("Clear the filter", () => changeQuery("")));
    }
    if (info.indexing) return nothing("Reading the files", "Trajectories appear here as they are found.");
    const names = info.files.map((file) => file.name).join(", ");
    return nothing("No trajectory yet", (names ? `There is none in ${names}.` : "There is none in what was given.") +
      (info.static ? "" : " This page shows the first one as soon as it is recorded."));
  }

  const pageCount = () =>
    (state.view === "groups" ? RT.groups.pages(shown.aggregate.groups, state) : Math.ceil(shown.list.matched / PAGE));

  function drawPager() {
    const { matched } = shown.list;
    const { page } = state;
    const pages = pageCount();
    if (pages < 2) return void fill(pager);
    const to = (target, label, name) => el("button.button", {
      "aria-label": name, disabled: target === page || target < 0 || target >= pages,
      on: { click: () => change({ page: target }) },
    }, label);
    fill(pager,
      to(0, "« first", "first page"), to(page - 1, "‹", "previous page"),
      el("span.num", state.view === "groups" ? `page ${count(page + 1)} of ${count(pages)}`
        : `${count(page * PAGE + 1)} to ${count(Math.min(matched, (page + 1) * PAGE))} of ${count(matched)}`),
      to(page + 1, "›", "next page"), to(pages - 1, "last »", "last page"));
  }

  // Loading.

  async function load({ aggregateToo = true } = {}) {
    const mine = ++turn;
    element.setAttribute("aria-busy", "true");
    try {
      const list = await RT.data.list({
        query: state.q, sort: state.sort, reverse: state.reverse, limit: PAGE,
        offset: state.view === "groups" ? 0 : state.page * PAGE,
      });
      const aggregate = aggregateToo || !shown.aggregate ? await RT.data.aggregate(state.q) : shown.aggregate;
      if (mine !== turn) return;
      shown = { list, aggregate };
      if (state.page && state.page >= pageCount()) {
        // Fewer match than when the address was made.
        state.page = Math.max(0, pageCount() - 1);
        RT.app.replace(address(state));
        return void (await load({ aggregateToo: false }));
      }
      fill(problems, list.problems.map((problem) => el("p", problem)));
      keepFocus(element, () => {
        drawControls();
        drawAggregate();
        drawBody();
      });
    } finally {
      if (mine === turn) element.removeAttribute("aria-busy");
    }
  }

  function typing() {
    window.clearTimeout(typed);
    typed = window.setTimeout(() => {
      state = { ...state, q: search.value, page: 0 };
      RT.app.replace(address(state));
      load().catch(RT.app.banner);
    }, TYPING_PAUSE);
  }

  function searchKey(event) {
    if (!["Escape", "Enter", "ArrowDown"].includes(event.key)) return;
    event.preventDefault();
    // Escape leaves the box; the browser would empty it.
    if (event.key === "Escape") search.blur();
    else focusLine(0);
  }

  // Moving over the lines.

  const lines = () => [...body.querySelectorAll("[data-key]")];

  function focusLine(i) {
    const line = lines().at(i);
    if (!line) return;
    line.querySelector(".open").focus({ preventScroll: true });
    line.scrollIntoView({ block: "nearest" });
  }

  function move(by) {
    if (!shown.list) return;
    const at = lines().findIndex((line) => line.contains(document.activeElement));
    const next = at < 0 ? (by > 0 ? 0 : lines().length - 1) : at + by;
    if (next >= lines().length && state.page + 1 < pageCount()) turnPage(1, 0);
    else if (next < 0 && state.page > 0) turnPage(-1, -1);
    else if (next >= 0) focusLine(next);
  }

  async function turnPage(by, line) {
    state = { ...state, page: state.page + by };
    RT.app.replace(address(state));
    try {
      await load({ aggregateToo: false });
      focusLine(line);
    } catch (error) {
      RT.app.banner(error);
    }
  }

  function focusSearch() {
    search.focus();
    search.select();
  }

  return {
    async open() {
      fill(element, el("h1.unseen", "Trajectories"),
        el("div.toolbar", search, views, chartsButton, columnsButton, exportButton),
        problems, chips, figures, tallies, charts, body, pager);
      drawControls();
      await load();
    },
    async update({ query }) {
      window.clearTimeout(typed);
      const before = state;
      state = readState(query);
      if (before.q !== state.q) search.value = state.q;
      await load({ aggregateToo: before.q !== state.q });
      if (before.page !== state.page) document.getElementById("main").scrollTop = 0;
    },
    refresh: () => load(),
    close() {
      window.clearTimeout(typed);
      turn += 1;
    },
    keys: [
      { key: "/", label: "search", run: focusSearch },
      { key: "j", label: "next line", run: () => move(1) },
      { key: "k", label: "line before", run: () => move(-1) },
      { key: "ArrowDown", label: "next line", run: () => move(1) },
      { key: "ArrowUp", label: "line before", run: () => move(-1) },
      { key: "Enter", label: "open the trajectory" },
      { key: "g", label: "groups, or the list", run: changeView },
      { key: "c", label: "charts", run: toggleCharts },
      { key: "x", label: "clear the filter", run: () => changeQuery("") },
    ],
    help: RT.filters.help,
  };
});
