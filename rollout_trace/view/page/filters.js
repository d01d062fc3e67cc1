"use strict";
// What says and changes which trajectories are shown: chips of the query, counts of statuses and findings, help.
window.RT = window.RT || {};

RT.filters = (() => {
  const { el, count, number, cost, time, plural, toneOfStatus } = RT.dom;
  const MOST_CODES = 8;

  /** How a term reads as a chip: times as times. */
  function chipText(term) {
    if (term.field !== "started") return term.raw;
    return term.raw.replace(/\d{9,}(?:\.\d+)?/g, (digits) => time(Number(digits)));
  }

  /** A chip for each term of the query; a click takes it out. */
  function chips(query, change) {
    const terms = RT.query.parse(query);
    if (!terms.length) return null;
    return el("div", { class: "chips", role: "group", "aria-label": "filters" },
      terms.map((term, i) => el("button", {
        class: "chip", "aria-label": `remove the filter ${term.raw}`, title: "Remove this filter",
        on: { click: () => change(RT.query.remove(query, i)) },
      }, el("span", { class: "clip" }, chipText(term)), el("span", { "aria-hidden": "true" }, "×"))),
      terms.length > 1 ? el("button", { class: "link", on: { click: () => change("") } }, "clear all") : null);
  }

  function tally(query, change, written, label, n, tone) {
    return el("button", {
      class: "chip", "aria-pressed": String(RT.query.has(query, written)), title: `Filter by ${written}`,
      on: { click: () => change(RT.query.toggle(query, written)) },
    }, tone ? el("span", { class: `dot ${tone}` }) : null, el("span", { class: "clip" }, label), el("span", { class: "num soft" }, count(n)));
  }

  const byNumber = (counts) => Object.entries(counts || {}).sort((a, b) => b[1] - a[1] || (a[0] < b[0] ? -1 : 1));

  /** The figures of what is shown, and its statuses and findings, each a filter. */
  function tallies(aggregate, query, change, more) {
    const findings = byNumber(aggregate.findings);
    const shown = more.open ? findings : findings.slice(0, MOST_CODES);
    return el("div", { class: "tallies" },
      el("div", { class: "chips", role: "group", "aria-label": "statuses" }, byNumber(aggregate.statuses).map(([status, n]) =>
        tally(query, change, RT.query.written("status", status, true), status, n, toneOfStatus(status)))),
      findings.length ? el("div", { class: "chips", role: "group", "aria-label": "findings" }, el("h2", {}, "Findings"),
        shown.map(([code, n]) => tally(query, change, RT.query.written("finding", code, true), code, n)),
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
        typeof aggregate.std_reward === "number" ? el("span", { class: "soft" }, ` ± ${number(aggregate.std_reward, 3)}`) : null) : null,
      aggregate.n_groups ? el("span", {}, plural(aggregate.n_groups, "group")) : null,
      typeof aggregate.cost === "number" ? el("span", {}, cost(aggregate.cost, aggregate.currency)) : null);
  }

  const EXAMPLES = [
    ["chain calculator", "both words, in id, name, task, group, first message, note or error"],
    ['"division by zero"', "these words in this order"],
    ["status:error", "texts: a part of them is enough, in any case"],
    ["status:=error", "the whole text"],
    ["reward:>0.5", "numbers: > >= < <= ="],
    ["steps:3..9", "from 3 to 9; 3.. and ..9 too"],
    ["rewards.correct:1", "one of several rewards; metrics.NAME too"],
    ["started:>2026-11-20", "days and times (UTC)"],
    ["reward:none", "not recorded, or empty"],
    ["-finding:drift", "not"],
    ['text:"tool_calls"', "anywhere in the recorded line; slower"],
  ];

  /** The search language, for the help. */
  function help() {
    return [
      el("h2", {}, "Search"),
      el("dl", { class: "keys" }, EXAMPLES.map(([example, meaning]) =>
        [el("dt", {}, el("code", {}, example)), el("dd", {}, meaning)])),
      el("h2", {}, "Fields"),
      el("p", { class: "soft" }, [...RT.query.texts, ...RT.query.numbers].join(", ")),
    ];
  }

  return { chips, tallies, figures, help };
})();
