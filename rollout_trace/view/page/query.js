"use strict";
// The language of the search box, over the summaries of trajectories. The server has the same in view/query.py; both are
// tested with tests/data/page_queries.json.
//
//   chain "two words"      each is in id, name, task, group, excerpt, note or error
//   status:error           a field; texts match as parts, in any case
//   reward:>0.5 steps:3..9 numbers: = > >= < <= and ranges with both ends
//   -finding:drift         not;   reward:none  not recorded, or empty
window.RT = window.RT || {};

RT.query = (() => {
  const WORD_FIELDS = ["id", "name", "task", "group", "excerpt", "note", "error"];
  const TEXTS = {
    id: "id", name: "name", task: "task", group: "group", episode: "episode", parent: "parent", status: "status",
    stop_reason: "stop_reason", error: "error", agent: "agents", agents: "agents", model: "models", models: "models",
    currency: "currency", finding: "findings", findings: "findings", grade: "grade", drift: "drift", left_out: "left_out",
    excerpt: "excerpt", note: "note",
  };
  const NUMBERS = {};
  for (const name of ["index", "attempt", "reward", "started", "seconds", "steps", "calls", "input_tokens",
    "output_tokens", "cost", "latency", "first_token", "tool_runs", "tool_errors", "rows", "tokens", "trained"]) {
    NUMBERS[name] = name;
  }
  const GRADES = { info: 1, warning: 2, fatal: 3 };
  const TERM = /(-?)(?:([A-Za-z_]+):)?("(?:[^"\\]|\\.)*"?|[^\s]*)/y;
  const NUMBER = /^[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?$/;

  /** The terms of a query: {raw, not, field: string|null, value, quoted}. */
  function parse(query) {
    const terms = [];
    let at = 0;
    while (at < query.length) {
      if (/\s/.test(query[at])) {
        at += 1;
        continue;
      }
      TERM.lastIndex = at;
      const [raw, minus, field, value] = TERM.exec(query);
      at += raw.length || 1;
      const quoted = value.startsWith('"');
      const plain = quoted ? value.slice(1).replace(/"$/, "").replace(/\\(.)/gs, "$1") : value;
      if (plain === "" && !field) continue;
      terms.push({ raw, not: minus === "-", field: field ? field.toLowerCase() : null, value: plain, quoted });
    }
    return terms;
  }

  function textsOf(row, field) {
    const value = row[field];
    if (value === null || value === undefined) return [];
    if (Array.isArray(value)) return value;
    return typeof value === "object" ? Object.keys(value) : value === "" ? [] : [String(value)];
  }

  const contains = (row, field, needle) => textsOf(row, field).some((t) => t.toLowerCase().includes(needle));

  function numberTest(value) {
    const range = /^(.*?)\.\.(.*)$/.exec(value);
    if (range) {
      const [low, high] = [range[1], range[2]].map((end) => (end === "" ? null : NUMBER.test(end) ? Number(end) : NaN));
      if ((low === null && high === null) || Number.isNaN(low) || Number.isNaN(high)) return null;
      return (x) => (low === null || x >= low) && (high === null || x <= high);
    }
    const [, sign, digits] = /^(>=|<=|>|<|=)?(.*)$/.exec(value);
    if (!NUMBER.test(digits)) return null;
    const n = Number(digits);
    return {
      ">": (x) => x > n, ">=": (x) => x >= n, "<": (x) => x < n, "<=": (x) => x <= n,
    }[sign] || ((x) => x === n);
  }

  /** A term as a predicate, or as a problem: {test} or {problem}. */
  function compileTerm(term) {
    const { field, value, quoted } = term;
    if (field === null) {
      const needle = value.toLowerCase();
      return { test: (row) => WORD_FIELDS.some((name) => contains(row, name, needle)) };
    }
    if (field === "text") {
      return { problem: "text: searches the recorded files; a page that was written to one file has none: leave it out" };
    }
    if (value === "" && !quoted) return { problem: `${field}: has no value; write ${field}:something or ${field}:none` };
    const none = value.toLowerCase() === "none" && !quoted;
    if (field in TEXTS) {
      const name = TEXTS[field];
      const needle = value.toLowerCase();
      return { test: none ? (row) => textsOf(row, name).length === 0 : (row) => contains(row, name, needle) };
    }
    if (field in NUMBERS) {
      if (none) return { test: (row) => typeof row[field] !== "number" };
      const fits = numberTest(value);
      if (fits) return { test: (row) => typeof row[field] === "number" && fits(row[field]) };
      return { problem: `${field}: "${value}" is not a number; write ${field}:1, ${field}:>0.5, ${field}:1..5 or ${field}:none` };
    }
    const known = Object.keys(TEXTS).concat(Object.keys(NUMBERS)).concat("text").sort().join(", ");
    return { problem: `there is no field "${field}"; fields: ${known}` };
  }

  /** {test: summary -> boolean, problems: [sentence]}. Terms with a problem are left out of the test. */
  function compile(query) {
    const tests = [];
    const problems = [];
    for (const term of parse(query)) {
      const { test, problem } = compileTerm(term);
      if (problem) problems.push(problem);
      else tests.push(term.not ? (row) => !test(row) : test);
    }
    return { test: (row) => tests.every((one) => one(row)), problems };
  }

  function sortValue(row, field) {
    const value = row[field];
    if (field === "grade") return GRADES[value] || 0;
    if (value === null || value === undefined || value === "") return null;
    if (Array.isArray(value)) return value.length ? value.join(" ").toLowerCase() : null;
    if (typeof value === "object") return Object.values(value).reduce((a, b) => a + b, 0);
    return typeof value === "string" ? value.toLowerCase() : value;
  }

  /** The rows in order of a field; rows without it come last in both directions; equal ones stay as they were. */
  function sorted(rows, field, reverse) {
    if (!field) return reverse ? [...rows].reverse() : rows;
    const sign = reverse ? -1 : 1;
    return rows.map((row) => [sortValue(row, field), row]).sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return a < b ? -sign : a > b ? sign : 0;
    }).map(([, row]) => row);
  }

  /** A value as the language writes it: quoted where it must be. */
  const quote = (value) => (/^[^\s"\\-][^\s"]*$/.test(value) && value.toLowerCase() !== "none" && !value.includes(":")
    ? value : '"' + value.replace(/["\\]/g, "\\$&") + '"');

  const joined = (terms) => terms.map((t) => t.raw).join(" ");

  const without = (query, drop) => joined(parse(query).filter((t) => !drop(t)));

  const add = (query, ...terms) => [query.trim(), ...terms].filter(Boolean).join(" ");

  /** The query with `field:value` where it had none, and without it where it had one. */
  function toggle(query, field, value) {
    const isIt = (t) => t.field === field && t.value === value && !t.not;
    return has(query, field, value) ? without(query, isIt) : add(query, `${field}:${quote(value)}`);
  }

  const has = (query, field, value) => parse(query).some((t) => t.field === field && t.value === value && !t.not);

  /** The query with these bounds of a number in place of others: [low, high, whether high belongs to it]. */
  function setRange(query, field, low, high, closed) {
    const rest = without(query, (t) => t.field === field && !t.not);
    return low === high ? add(rest, `${field}:${low}`) : add(rest, `${field}:>=${low}`, `${field}:${closed ? "<=" : "<"}${high}`);
  }

  const remove = (query, index) => joined(parse(query).filter((_, i) => i !== index));

  return { parse, compile, sorted, quote, toggle, has, setRange, remove, fields: { texts: Object.keys(TEXTS), numbers: Object.keys(NUMBERS) } };
})();
