// The table of trajectories: its columns, and a page of its lines.
RT.table = (() => {
  const { el, number, short, count, duration, cost, time, plural, toneOfStatus, toneOfGrade, remembered, remember } = RT.dom;

  const known = (x) => typeof x === "number";
  const soft = (text) => el("span", { class: "soft" }, text);
  const dash = () => el("span", { class: "soft dash" }, "-");
  const counted = (names) => Object.entries(names).map(([name, n]) => (n > 1 ? `${name} ×${n}` : name)).join(", ");

  function nameCell(row, scale) {
    return [
      scale.depths.get(row) ? el("span", { class: "nested", style: { width: `${14 * Math.min(scale.depths.get(row), 5)}px` } }) : null,
      el("span", { class: `dot ${toneOfStatus(row.status)}`, title: row.status, role: "img", "aria-label": row.status }),
      el("a", { class: "open", href: RT.app.hash("t", [row.key]) }, row.name),
      known(row.index) ? soft(`#${row.index}`) : null,
      row.parent ? el("span", { class: "tag", title: `opened by ${row.parent}` }, "sub-agent") : null,
      known(row.attempt) && row.attempt > 1 ? el("span", { class: "tag" }, `attempt ${row.attempt}`) : null,
    ];
  }

  /** A number with a bar that begins at zero. */
  function rewardCell(row, scale) {
    if (!known(row.reward)) return dash();
    const span = scale.high - scale.low || 1;
    const zero = (0 - scale.low) / span;
    const end = (row.reward - scale.low) / span;
    return [
      el("span", {}, number(row.reward)),
      el("span", { class: "meter", "aria-hidden": "true" }, el("i", {
        class: row.reward < 0 ? "below" : "", style: {
          left: `${(100 * Math.min(zero, end)).toFixed(1)}%`, width: `${Math.max(row.reward === 0 ? 0 : 2, 100 * Math.abs(end - zero)).toFixed(1)}%`,
        },
      })),
    ];
  }

  /** The number of tokens, and a strip: as long as there are tokens, the sampled part in colour. */
  function tokensCell(row, scale) {
    if (!row.rows) return dash();
    const title = `${plural(row.rows, "training row")}: ${count(row.trained)} of ${count(row.tokens)} tokens sampled`;
    const width = Math.max(3, (100 * row.tokens) / (scale.tokens || 1));
    return [
      el("span", { title }, short(row.tokens)),
      el("span", { class: "strip", role: "img", "aria-label": title, title },
        el("i", { class: "sampled", style: { width: `${((width * row.trained) / row.tokens).toFixed(1)}%` } }),
        el("i", { class: "read", style: { width: `${((width * (row.tokens - row.trained)) / row.tokens).toFixed(1)}%` } })),
    ];
  }

  // Of grade info always, as in rollout_trace/train/check_codes.py: they are no faults, and have their chips above.
  const INFO = ["cached", "superseded", "not_trainable", "logprobs_not_sampled", "sent_as_text", "forks"];
  const WARNINGS = ["error", "cancelled", "abandoned", "running", "empty_completion", "logprobs_missing", "retokenized", "truncated", "degenerate",
    "logprobs_all_zero", "constrained_sampling", "distribution_truncated", "distribution_biased", "aborted", "extra_withheld", "extra_not_sent",
    "ids_not_served", "usage_unread", "error_unread", "drift", "several_roots", "logprobs_modes_differ", "reward_missing", "repeated_rollout"];

  function findingsCell(row, scale) {
    const shown = Object.fromEntries(Object.entries(row.findings).filter(([code]) => !INFO.includes(code) && !scale.common.includes(code)));
    const codes = Object.keys(shown);
    if (row.grade === "info" || !codes.length) return dash();
    // The fatal one may be one that every line has.
    const grade = row.grade === "fatal" && codes.every((code) => WARNINGS.includes(code)) ? "warning" : row.grade;
    return el("span", { class: "findings clip", title: counted(row.findings) },
      el("span", { class: `dot ${toneOfGrade(grade) || ""}`, role: "img", "aria-label": grade || "finding" }),
      ` ${counted(shown)}`);
  }

  const textCell = (value) => (value === null || value === undefined || value === "" ? dash() : el("span", { title: value }, value));

  function excerptCell(row) {
    if (row.error) return el("span", { class: "bad", title: row.error }, row.error);
    if (row.note) return el("span", { title: row.note }, el("b", {}, "note "), row.note);
    return soft(row.excerpt);
  }

  // id: the field that it is sorted by. kind: how it is aligned and how wide it may be.
  const COLUMNS = [
    { id: "name", label: "Trajectory", kind: "name", cell: nameCell, fixed: true },
    { id: "task", label: "Task", kind: "text", cell: (row) => textCell(row.task), shown: true },
    { id: "group", label: "Group", kind: "text", cell: (row) => textCell(row.group) },
    { id: "reward", label: "Reward", kind: "number wide", cell: rewardCell, shown: true },
    { id: "steps", label: "Steps", kind: "number", cell: (row) => count(row.steps), shown: true },
    { id: "tokens", label: "Tokens", kind: "number wide", cell: tokensCell, shown: true, help: "of all training rows; sampled ones in colour" },
    { id: "rows", label: "Rows", kind: "number", cell: (row) => count(row.rows), help: "training rows" },
    { id: "findings", label: "Findings", kind: "text", cell: findingsCell, shown: true },
    { id: "drift", label: "Drift", kind: "text", cell: (row) => textCell(counted(row.drift)) },
    { id: "tool_runs", label: "Tools", kind: "number", help: "tool runs",
      cell: (row) => [count(row.tool_runs), row.tool_errors ? el("span", { class: "bad" }, ` ${count(row.tool_errors)} failed`) : null] },
    { id: "seconds", label: "Time", kind: "number", cell: (row) => duration(row.seconds), shown: true },
    { id: "first_token", label: "First token", kind: "number", cell: (row) => duration(row.first_token), help: "mean of its calls" },
    { id: "cost", label: "Cost", kind: "number", cell: (row) => cost(row.cost, row.currency), shown: true },
    { id: "input_tokens", label: "Input", kind: "number", cell: (row) => short(row.input_tokens), help: "tokens that the engine counted" },
    { id: "output_tokens", label: "Output", kind: "number", cell: (row) => short(row.output_tokens), help: "tokens that the engine counted" },
    { id: "models", label: "Model", kind: "text", cell: (row) => textCell(row.models.join(", ")) },
    { id: "status", label: "Status", kind: "text", cell: (row) => textCell(row.status) },
    { id: "started", label: "Started", kind: "number", cell: (row) => time(row.started) },
    { id: "id", label: "Id", kind: "text mono", cell: (row) => textCell(row.id) },
    { id: "excerpt", label: "Begins with", kind: "rest", cell: excerptCell, shown: true },
  ];

  function shownColumns() {
    const chosen = remembered("columns", null);
    return COLUMNS.filter((c) => c.fixed || (Array.isArray(chosen) ? chosen.includes(c.id) : c.shown));
  }

  /** The dialog that chooses columns. */
  function chooseColumns(changed) {
    const boxes = COLUMNS.filter((c) => !c.fixed).map((column) => {
      const box = el("input", { type: "checkbox", checked: shownColumns().includes(column), value: column.id });
      return { box, label: el("label", {}, box, ` ${column.label}`, column.help ? soft(` ${column.help}`) : null) };
    });
    const store = (ids) => {
      remember("columns", ids);
      changed();
    };
    boxes.forEach(({ box }) => box.addEventListener("change", () => store(boxes.filter((b) => b.box.checked).map((b) => b.box.value))));
    RT.app.dialog("Columns", el("div", { class: "columns" }, boxes.map((b) => b.label)),
      el("button", {
        class: "button", on: {
          click: () => {
            store(null);
            boxes.forEach(({ box }) => { box.checked = COLUMNS.find((c) => c.id === box.value).shown === true; });
          },
        },
      }, "As at first"));
  }

  function head(column, { sort, reverse, sortBy }) {
    const on = sort === column.id;
    return el("th", { class: column.kind, role: "columnheader", scope: "col", "aria-sort": on ? (reverse ? "descending" : "ascending") : "none" },
      el("button", { class: "sort", title: column.help || null, on: { click: () => sortBy(column.id) } },
        column.label, on ? el("span", { class: "arrow", "aria-hidden": "true" }, reverse ? "↓" : "↑") : null));
  }

  function line(row, columns, scale) {
    const tr = el("tr", { role: "row", data: { key: row.key } }, columns.map((column) =>
      el("td", { class: column.kind, role: "cell", data: { label: column.label, column: column.id } }, column.cell(row, scale))));
    tr.addEventListener("click", (event) => {
      if (event.target.closest("a, button") || String(window.getSelection())) return;
      if (event.ctrlKey || event.metaKey) window.open(RT.app.hash("t", [row.key]), "_blank");
      else RT.app.go(RT.app.hash("t", [row.key]));
    });
    return tr;
  }

  function scaleOf(rows, others) {
    const rewards = rows.map((row) => row.reward).concat(others).filter(known);
    return {
      low: rewards.reduce((a, b) => Math.min(a, b), 0),
      high: rewards.reduce((a, b) => Math.max(a, b), 0),
      tokens: rows.reduce((most, row) => Math.max(most, row.tokens), 0),
      // What every line has tells none from another.
      common: rows.length > 2 ? Object.keys(rows[0].findings).filter((code) => rows.every((row) => code in row.findings)) : [],
      depths: new Map(),
    };
  }

  /** How deep each line stands below that of the trajectory that opened it, where that stands before it. */
  function depthsOf(rows) {
    const [depths, ids] = [new Map(), new Map()];
    for (const row of rows) {
      depths.set(row, row.parent && ids.has(row.parent) ? ids.get(row.parent) + 1 : 0);
      ids.set(row.id, depths.get(row));
    }
    return depths;
  }

  /** A table of these lines. `options` = {sort, reverse, sortBy(field), rewards}: `rewards` are others that the bars' scale has. */
  function draw(rows, options) {
    const columns = shownColumns();
    const scale = scaleOf(rows, options.rewards);
    if (!options.sort) scale.depths = depthsOf(rows);
    return el("table", { class: "list", role: "table", "aria-label": "trajectories" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, columns.map((column) => head(column, options)))),
      el("tbody", { role: "rowgroup" }, rows.map((row) => line(row, columns, scale))));
  }

  /** Which field and direction a click on a column leads to: down first for numbers, then up, then as recorded. */
  function nextSort(field, sort, reverse) {
    const downFirst = COLUMNS.find((c) => c.id === field).kind.startsWith("number") || field === "findings" || field === "drift";
    if (sort !== field) return { sort: field, reverse: downFirst };
    return reverse === downFirst ? { sort: field, reverse: !downFirst } : { sort: "", reverse: false };
  }

  return { draw, chooseColumns, nextSort, columns: COLUMNS, grades: { info: INFO, warning: WARNINGS } };
})();
