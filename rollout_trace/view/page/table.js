// The table of trajectories: its columns, and a page of its lines.
RT.table = (() => {
  const dash = () => el("span.soft.dash", "-");
  const counted = (names) => Object.entries(names).map(([name, n]) => (n > 1 ? `${name} ×${n}` : name)).join(", ");
  const percent = (share) => `${(100 * share).toFixed(1)}%`;

  function nameCell(row, { depths }) {
    return [
      depths.get(row) > 0 && el("span.nested", { style: { width: `${14 * Math.min(depths.get(row), 5)}px` } }),
      el(`span.dot.${toneOfStatus(row.status)}`, { title: row.status, role: "img", "aria-label": row.status }),
      el("a.open", { href: RT.app.hash("t", [row.key]) }, row.name),
      known(row.index) && soft(`#${row.index}`),
      row.parent && el("span.tag", { title: `opened by ${row.parent}` }, "sub-agent"),
      row.attempt > 1 && el("span.tag", `attempt ${row.attempt}`),
    ];
  }

  /** A number with a bar that begins at zero. */
  function rewardCell(row, { low, high }) {
    if (!known(row.reward)) return dash();
    const [zero, end] = [0, row.reward].map((value) => (value - low) / (high - low || 1));
    const width = Math.max(row.reward === 0 ? 0 : 0.02, Math.abs(end - zero));
    return [
      el("span", number(row.reward)),
      el("span.meter", { "aria-hidden": "true" }, el("i", {
        class: row.reward < 0 ? "below" : "", style: { left: percent(Math.min(zero, end)), width: percent(width) },
      })),
    ];
  }

  /** The number of tokens, and a strip: as long as there are tokens, the sampled part in colour. */
  function tokensCell(row, scale) {
    if (!row.rows) return dash();
    const title = `${plural(row.rows, "training row")}: ${count(row.trained)} of ${count(row.tokens)} tokens sampled`;
    const width = Math.max(0.03, row.tokens / (scale.tokens || 1));
    const part = (name, n) => el("i", { class: name, style: { width: percent((width * n) / row.tokens) } });
    return [
      el("span", { title }, short(row.tokens)),
      el("span.strip", { role: "img", "aria-label": title, title },
        part("sampled", row.trained), part("read", row.tokens - row.trained)),
    ];
  }

  function findingsCell(row, { common }) {
    const { grades } = RT.app.info;
    // Those of grade info are no faults, and have their chips above.
    const shown = Object.entries(row.findings).filter(([code]) => grades[code] !== "info" && !common.includes(code));
    if (row.grade === "info" || !shown.length) return dash();
    // The fatal one may be one that every line has.
    const grade = row.grade === "fatal" && shown.every(([code]) => grades[code] === "warning") ? "warning" : row.grade;
    return el("span.findings.clip", { title: counted(row.findings) },
      el("span", { class: `dot ${toneOfGrade(grade)}`, role: "img", "aria-label": grade || "finding" }),
      ` ${counted(Object.fromEntries(shown))}`);
  }

  const textCell = (value) => (known(value) && value !== "" ? el("span", { title: value }, value) : dash());

  function excerptCell(row) {
    if (row.error) return el("span.bad", { title: row.error }, row.error);
    if (row.note) return el("span", { title: row.note }, el("b", "note "), row.note);
    return soft(row.excerpt);
  }

  const toolsCell = (row) =>
    [count(row.tool_runs), row.tool_errors > 0 && el("span.bad", ` ${count(row.tool_errors)} failed`)];

  // The field that it is sorted by; its name; how it is aligned and how wide it may be; what stands in it; a help.
  const COLUMNS = [
    ["name", "Trajectory", "name", nameCell],
    ["task", "Task", "text", (row) => textCell(row.task)],
    ["group", "Group", "text", (row) => textCell(row.group)],
    ["reward", "Reward", "number wide", rewardCell],
    ["steps", "Steps", "number", (row) => count(row.steps)],
    ["tokens", "Tokens", "number wide", tokensCell, "of all training rows; sampled ones in colour"],
    ["rows", "Rows", "number", (row) => count(row.rows), "training rows"],
    ["findings", "Findings", "text", findingsCell],
    ["drift", "Drift", "text", (row) => textCell(counted(row.drift))],
    ["tool_runs", "Tools", "number", toolsCell, "tool runs"],
    ["seconds", "Time", "number", (row) => duration(row.seconds)],
    ["first_token", "First token", "number", (row) => duration(row.first_token), "mean of its calls"],
    ["cost", "Cost", "number", (row) => cost(row.cost, row.currency)],
    ["input_tokens", "Input", "number", (row) => short(row.input_tokens), "tokens that the engine counted"],
    ["output_tokens", "Output", "number", (row) => short(row.output_tokens), "tokens that the engine counted"],
    ["models", "Model", "text", (row) => textCell(row.models.join(", "))],
    ["status", "Status", "text", (row) => textCell(row.status)],
    ["started", "Started", "number", (row) => time(row.started)],
    ["id", "Id", "text mono", (row) => textCell(row.id)],
    ["excerpt", "Begins with", "rest", excerptCell],
  ].map(([id, label, kind, cell, help]) => ({ id, label, kind, cell, help }));
  const USUAL = ["task", "reward", "steps", "tokens", "findings", "seconds", "cost", "excerpt"];
  const [NAME, ...OTHERS] = COLUMNS;

  function shownColumns() {
    const chosen = remembered("columns", USUAL);
    return [NAME, ...OTHERS.filter(({ id }) => chosen.includes(id))];
  }

  function chooseColumns(changed) {
    const boxes = OTHERS.map(({ id }) => el("input", { type: "checkbox", value: id, on: { change: store } }));
    const show = () => boxes.forEach((box) => { box.checked = shownColumns().some(({ id }) => id === box.value); });

    function store(event) {
      const isChosen = event.currentTarget.type === "checkbox";
      remember("columns", isChosen ? boxes.filter((box) => box.checked).map((box) => box.value) : null);
      show();
      changed();
    }

    show();
    RT.app.dialog("Columns",
      el("div.columns", OTHERS.map(({ label, help }, i) =>
        el("label", boxes[i], ` ${label}`, help && soft(` ${help}`)))),
      el("button.button", { on: { click: store } }, "As at first"));
  }

  function head(column, { sort, reverse, sortBy }) {
    const on = sort === column.id;
    const order = on ? (reverse ? "descending" : "ascending") : "none";
    return el("th", { class: column.kind, role: "columnheader", scope: "col", "aria-sort": order },
      el("button.sort", { title: column.help, on: { click: () => sortBy(column.id) } },
        column.label, on && el("span.arrow", { "aria-hidden": "true" }, reverse ? "↓" : "↑")));
  }

  function line(row, columns, scale) {
    const place = RT.app.hash("t", [row.key]);
    const open = (event) => {
      if (event.target.closest("a, button") || String(window.getSelection())) return;
      if (event.ctrlKey || event.metaKey) window.open(place, "_blank");
      else RT.app.go(place);
    };
    const cells = columns.map(({ kind, label, id, cell }) =>
      el("td", { class: kind, role: "cell", data: { label, column: id } }, cell(row, scale)));
    return el("tr", { role: "row", data: { key: row.key }, on: { click: open } }, cells);
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

  /** A table of these lines. `options` = {sort, reverse, sortBy(field), rewards: {low, high}, of all pages}. */
  function draw(rows, options) {
    const columns = shownColumns();
    // What every line has tells none from another.
    const common = Object.keys(rows[0].findings).filter((code) => rows.every((row) => code in row.findings));
    const scale = {
      low: Math.min(0, options.rewards.low),
      high: Math.max(0, options.rewards.high),
      tokens: most(rows.map((row) => row.tokens)),
      common: rows.length > 2 ? common : [],
      depths: options.sort ? new Map() : depthsOf(rows),
    };
    return el("table.list", { role: "table", "aria-label": "trajectories" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, columns.map((column) => head(column, options)))),
      el("tbody", { role: "rowgroup" }, rows.map((row) => line(row, columns, scale))));
  }

  /** Which field and direction a click on a column leads to: down first for numbers, then up, then as recorded. */
  function nextSort(field, sort, reverse) {
    const { kind } = COLUMNS.find(({ id }) => id === field);
    const downFirst = kind.startsWith("number") || field === "findings" || field === "drift";
    if (sort !== field) return { sort: field, reverse: downFirst };
    return reverse === downFirst ? { sort: field, reverse: !downFirst } : { sort: "", reverse: false };
  }

  return { draw, chooseColumns, nextSort };
})();
