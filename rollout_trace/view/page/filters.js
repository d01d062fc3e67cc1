// What says and changes which trajectories are shown: chips of the query, counts of statuses and findings, help.
RT.filters = (() => {
  const MOST_CODES = 8;

  const chipsOf = (name, ...children) => el("div.chips", { role: "group", "aria-label": name }, children);

  /** A chip for each term of the query; a click takes it out. */
  function chips(query, change) {
    const terms = RT.search.terms(query);
    return terms.length > 0 && chipsOf("filters",
      terms.map((term, i) => el("button.chip", {
        "aria-label": `remove the filter ${term}`, title: "Remove this filter",
        on: { click: () => change(RT.search.remove(query, i)) },
      }, el("span.clip", term), el("span", { "aria-hidden": "true" }, "×"))),
      terms.length > 1 && link("clear all", () => change("")));
  }

  function tally(query, change, written, label, n, tone) {
    return el("button.chip", {
      "aria-pressed": String(RT.search.has(query, written)), title: `Filter by ${written}`,
      on: { click: () => change(RT.search.toggle(query, written)) },
    }, tone && el("span", { class: `dot ${tone}` }), el("span.clip", label), el("span.num.soft", count(n)));
  }

  const byNumber = (counts) => Object.entries(counts).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));

  /** The statuses and findings of what is shown, each a filter. `more` = {open, toggle}: whether all are there. */
  function tallies(aggregate, query, change, more) {
    const findings = byNumber(aggregate.findings);
    const rest = findings.length - MOST_CODES;
    return el("div.tallies",
      chipsOf("statuses", byNumber(aggregate.statuses).map(([status, n]) =>
        tally(query, change, `status == ${JSON.stringify(status)}`, status, n, toneOfStatus(status)))),
      findings.length > 0 && chipsOf("findings", el("h2", "Findings"),
        findings.slice(0, more.open ? Infinity : MOST_CODES).map(([code, n]) =>
          tally(query, change, `${JSON.stringify(code)} in findings`, code, n)),
        rest > 0 && link(more.open ? "fewer" : `${rest} more`, more.toggle)));
  }

  /** One line of figures: how many, their mean reward, their cost. */
  function figures({ n, rewards, groups, cost: paid, currency }, total) {
    const all = plural(total, "trajectory", "trajectories");
    return el("p.figures.num", { role: "status" },
      el("b", n === total ? all : `${count(n)} of ${all}`),
      known(rewards.mean) && el("span", "mean reward ", el("b", number(rewards.mean, 3)),
        known(rewards.deviation) && soft(` · standard deviation ${number(rewards.deviation, 3)}`)),
      groups.length > 0 && el("span", plural(groups.length, "group")),
      known(paid) && el("span", cost(paid, currency)));
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

  const help = () => [
    el("h2", "Search"),
    el("p.soft", "Words, or an expression in Python's syntax, as rollout-trace filter takes it."),
    el("dl.keys", EXAMPLES.map(([example, meaning]) => [el("dt", el("code", example)), el("dd", meaning)])),
    el("h2", "Names"),
    el("p.soft", [...RT.expression.names, ...RT.expression.whole].sort().join(", ")),
  ];

  // Export: the commands that write what the list shows.

  const MOST_FILES = 8;
  const quoted = (word) => (/^[\w./:@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`);

  /** The commands for a search, each with what it does. */
  function commands(query, files) {
    const test = RT.search.expression(query);
    const paths = files.map(({ path }) => quoted(path.startsWith("-") ? `./${path}` : path));
    const named = files.length > MOST_FILES || !files.length ? "FILES" : paths.join(" ");
    const where = test ? ` --where ${quoted(test)}` : "";
    const all = [
      ["Rows to train on, here for TRL; convert --list has the other formats",
        `rollout-trace convert ${named} --to trl -o rows.parquet${where}`],
      ["As chats, without token ids", `rollout-trace convert ${named} --to chat -o chats.jsonl${where}`],
      ["As a page that opens from disk", `rollout-trace view ${named}${where} --html page.html`],
    ];
    const selected = `rollout-trace filter ${quoted(test)} ${named} -o selected.jsonl`;
    return test ? [["These trajectories, as a file", selected], ...all] : all;
  }

  function exporting(query) {
    const what = query ? "What the search finds." : "All trajectories.";
    RT.app.dialog("Export", el("p.soft", `${what} Type, or paste, into a terminal:`),
      commands(query, RT.app.info.files).map(([meaning, command]) => [el("h2", meaning),
        el("p.command", el("code", command), " ", copier("the command", () => command))]));
  }

  return { chips, tallies, figures, help, exporting, commands };
})();
