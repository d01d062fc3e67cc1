// What says and changes which trajectories are shown: chips of the query, counts of statuses and findings, help.
RT.filters = (() => {
  const { el, count, number, cost, plural, toneOfStatus } = RT.dom;
  const MOST_CODES = 8;

  /** A chip for each term of the query; a click takes it out. */
  function chips(query, change) {
    const terms = RT.search.terms(query);
    if (!terms.length) return null;
    return el("div", { class: "chips", role: "group", "aria-label": "filters" },
      terms.map((term, i) => el("button", {
        class: "chip", "aria-label": `remove the filter ${term}`, title: "Remove this filter",
        on: { click: () => change(RT.search.remove(query, i)) },
      }, el("span", { class: "clip" }, term), el("span", { "aria-hidden": "true" }, "×"))),
      terms.length > 1 ? el("button", { class: "link", on: { click: () => change("") } }, "clear all") : null);
  }

  function tally(query, change, written, label, n, tone) {
    return el("button", {
      class: "chip", "aria-pressed": String(RT.search.has(query, written)), title: `Filter by ${written}`,
      on: { click: () => change(RT.search.toggle(query, written)) },
    }, tone ? el("span", { class: `dot ${tone}` }) : null, el("span", { class: "clip" }, label), el("span", { class: "num soft" }, count(n)));
  }

  const byNumber = (counts) => Object.entries(counts || {}).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));

  /** The figures of what is shown, and its statuses and findings, each a filter. */
  function tallies(aggregate, query, change, more) {
    const findings = byNumber(aggregate.findings);
    const shown = more.open ? findings : findings.slice(0, MOST_CODES);
    return el("div", { class: "tallies" },
      el("div", { class: "chips", role: "group", "aria-label": "statuses" }, byNumber(aggregate.statuses).map(([status, n]) =>
        tally(query, change, `status == ${JSON.stringify(status)}`, status, n, toneOfStatus(status)))),
      findings.length ? el("div", { class: "chips", role: "group", "aria-label": "findings" }, el("h2", {}, "Findings"),
        shown.map(([code, n]) => tally(query, change, `${JSON.stringify(code)} in findings`, code, n)),
        findings.length > MOST_CODES ? el("button", { class: "link", on: { click: more.toggle } },
          more.open ? "fewer" : `${findings.length - MOST_CODES} more`) : null) : null);
  }

  /** One line of figures: how many, their mean reward, their cost. */
  function figures(aggregate, total) {
    const n = aggregate.n;
    const mean = aggregate.mean_reward;
    return el("p", { class: "figures num", role: "status" },
      el("b", {}, n === total ? plural(n, "trajectory", "trajectories") : `${count(n)} of ${plural(total, "trajectory", "trajectories")}`),
      typeof mean === "number" ? el("span", {}, "mean reward ", el("b", {}, number(mean, 3)),
        typeof aggregate.std_reward === "number" ? el("span", { class: "soft" }, ` · standard deviation ${number(aggregate.std_reward, 3)}`) : null) : null,
      aggregate.groups.length ? el("span", {}, plural(aggregate.groups.length, "group")) : null,
      typeof aggregate.cost === "number" ? el("span", {}, cost(aggregate.cost, aggregate.currency)) : null);
  }

  const EXAMPLES = [
    ["left eggs", "both words, in id, name, task, group, first message, note or error"],
    ['"division by zero"', "these words in this order"],
    ["reward > 0.5 and n_steps < 20", "numbers; 0 < reward < 1 is a range"],
    ['status == "failed"', "a whole text"],
    ['"timeout" in lower(error)', "a part of a text"],
    ['"truncated" in findings', "what rollout-trace check finds"],
    ["rewards.correct == 1", "one of several rewards; metrics.NAME too"],
    ['started_at > "2026-11-20"', "days and times (UTC)"],
    ["reward is None", "what is not known; not reward == 1 turns a test around"],
    ['eggs and status in ["failed", "aborted"]', "words beside an expression"],
    ['"tool_calls" in text', "in all messages, answers and tool results: reads the files"],
    ["any(step.latency > 60 for step in steps)", "in the steps: reads the files"],
  ];

  /** The search language, for the help. */
  function help() {
    return [
      el("h2", {}, "Search"),
      el("p", { class: "soft" }, "Words, or an expression in Python's syntax, as rollout-trace filter takes it."),
      el("dl", { class: "keys" }, EXAMPLES.map(([example, meaning]) =>
        [el("dt", {}, el("code", {}, example)), el("dd", {}, meaning)])),
      el("h2", {}, "Names"),
      el("p", { class: "soft" }, [...RT.expression.names, ...RT.expression.whole].sort().join(", ")),
    ];
  }

  // Export: the commands that write what the list shows.

  const MOST_FILES = 8;
  const quoted = (word) => (/^[\w./:@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

  /** The commands for a search, each with what it does. */
  function commands(query, files) {
    const test = RT.search.expression(query);
    const paths = files.length > MOST_FILES ? "FILES" : files.map((file) => quoted(file.path.startsWith("-") ? `./${file.path}` : file.path)).join(" ") || "FILES";
    const where = test ? ` --where ${quoted(test)}` : "";
    return [
      ...(test ? [["These trajectories, as a file", `rollout-trace filter ${quoted(test)} ${paths} -o selected.jsonl`]] : []),
      ["Rows to train on, here for TRL; convert --list has the other formats", `rollout-trace convert ${paths} --to trl -o rows.parquet${where}`],
      ["As chats, without token ids", `rollout-trace convert ${paths} --to chat -o chats.jsonl${where}`],
      ["As a page that opens from disk", `rollout-trace view ${paths}${where} --html page.html`],
    ];
  }

  function exporting(query) {
    RT.app.dialog("Export", el("p", { class: "soft" }, query ? "What the search finds. Type, or paste, into a terminal:" : "All trajectories. Type, or paste, into a terminal:"),
      commands(query, RT.app.info.files || []).map(([meaning, command]) => [el("h2", {}, meaning),
        el("p", { class: "command" }, el("code", {}, command), " ", RT.shown.copier("the command", () => command))]));
  }

  return { chips, tallies, figures, help, exporting, commands };
})();
