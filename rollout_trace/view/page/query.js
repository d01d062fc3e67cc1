"use strict";
// The language of the search box, over the summaries of trajectories. The server has the same in view/query.py; both are
// tested with tests/data/page_queries.json.
//
//   chain "two words"      each is in id, name, task, group, excerpt, note or error
//   status:error           a field; texts match as parts, in any case
//   reward:>0.5 steps:3..9 numbers: = > >= < <= and ranges, both ends included
//   -finding:drift         not;   reward:none  not known, or empty
window.RT = window.RT || {};

RT.query = (() => {
  const SEARCHED = ["id", "name", "task", "group", "excerpt", "note", "error"];
  const TEXTS = ["id", "name", "task", "group", "episode", "parent", "status", "stop_reason", "error", "agent", "model",
    "currency", "left_out", "finding", "grade", "drift", "excerpt", "note"];
  const NUMBERS = ["reward", "index", "attempt", "started", "seconds", "steps", "calls", "input_tokens", "output_tokens",
    "cost", "latency", "first_token", "tool_runs", "tool_errors", "rows", "tokens", "trained"];
  const ALIASES = { agents: "agent", models: "model", findings: "finding", task_id: "task", group_id: "group" };
  const IN_SUMMARY = { agent: "agents", model: "models", finding: "findings" };
  const GRADES = { info: 1, warning: 2, fatal: 3 };
  const TERM = /(-?)(?:([A-Za-z_][A-Za-z0-9_.-]*):)?(?:"([^"]*)"?|([^ \t\r\n]*))/y;
  const NUMBER = /^[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?$/;
  const DAY = /^(\d{4})-(\d\d)-(\d\d)(?:T(\d\d):(\d\d)(?::(\d\d))?Z?)?$/;
  const NAMED = /^(reward|metric)s?\.(.+)$/;

  /** The terms of a query: {raw, not, name: string|null, field: its name in FIELDS or null, value, quoted}. */
  function parse(query) {
    const terms = [];
    for (let at = 0; at < query.length;) {
      TERM.lastIndex = at;
      const [found, minus, name = null, quoted, bare] = TERM.exec(query);
      at += found.length || 1;
      const raw = quoted === undefined || found.endsWith('"') ? found : found + '"';
      const value = quoted === undefined ? bare : quoted;
      // Empty: it is still being typed.
      if (!value) continue;
      terms.push({ raw, not: minus === "-", name, field: name && fieldOf(name), value, quoted: quoted !== undefined });
    }
    return terms;
  }

  function fieldOf(name) {
    const named = NAMED.exec(name);
    const lower = name.toLowerCase();
    return named ? `${named[1]}s.${named[2]}` : ALIASES[lower] || lower;
  }

  /** What a summary has under the name of a query: a text (names a line each), a number, or null. */
  function valueOf(row, field) {
    const [group, ...rest] = field.split(".");
    if (rest.length) return (row[group] || {})[rest.join(".")] ?? null;
    const value = row[IN_SUMMARY[field] || field];
    if (value === null || value === undefined) return null;
    if (typeof value === "object") return (Array.isArray(value) ? value : Object.keys(value)).join("\n") || null;
    return value === "" ? null : value;
  }

  function numberOf(field, text) {
    if (NUMBER.test(text)) return Number(text);
    const day = field === "started" && DAY.exec(text);
    if (day) {
      const [year, month, date, hours, minutes, seconds] = day.slice(1).map((part) => Number(part || 0));
      const at = new Date(Date.UTC(year, month - 1, date, hours, minutes, seconds));
      const whole = at.getUTCMonth() === month - 1 && at.getUTCDate() === date && hours < 24 && minutes < 60 && seconds < 60;
      if (whole) return at.getTime() / 1000;
    }
    const form = field === "started" ? "a number, or a day such as 2026-11-20" : "a number, such as 0.5, >0.5 or 1..5";
    throw new Error(`${field} is compared with ${form}; ${text} is none.`);
  }

  /** The test of a number, or null for a value that is still being typed. */
  function numberTest(field, value) {
    const [, sign, rest] = /^(>=|<=|>|<|=|)(.*)$/s.exec(value);
    if (!rest) return null;
    const dots = sign ? -1 : rest.indexOf("..");
    if (dots >= 0) {
      const [first, last] = [rest.slice(0, dots), rest.slice(dots + 2)];
      const low = first ? numberOf(field, first) : -Infinity;
      const high = last ? numberOf(field, last) : Infinity;
      return (x) => x >= low && x <= high;
    }
    const n = numberOf(field, rest);
    return { ">": (x) => x > n, ">=": (x) => x >= n, "<": (x) => x < n, "<=": (x) => x <= n }[sign] || ((x) => x === n);
  }

  function textTest(term) {
    const [, sign, rest] = term.quoted ? ["", "", term.value] : /^(>=|<=|>|<|=|)(.*)$/s.exec(term.value);
    if (!rest) return null;
    if (sign && sign !== "=") {
      throw new Error(`${term.field} is a text: ${term.raw} compares it like a number. Write ${term.field}:${rest}.`);
    }
    const needle = rest.toLowerCase();
    if (sign) return (value) => value.toLowerCase().split("\n").includes(needle);
    return (value) => value.toLowerCase().includes(needle);
  }

  const searched = (row) => SEARCHED.map((field) => valueOf(row, field)).filter((v) => v !== null).join("\n").toLowerCase();

  /** A term as a predicate of a summary; null where it says nothing yet. Throws an Error with a sentence. */
  function compileTerm(term) {
    const { field, value, quoted } = term;
    if (field === null) {
      const needle = value.toLowerCase();
      return (row) => searched(row).includes(needle);
    }
    if (field === "text") throw new Error("text: searches the lines of files, which a page without a server has not.");
    const isNumber = field.includes(".") || NUMBERS.includes(field);
    if (!isNumber && !TEXTS.includes(field)) {
      const known = [...TEXTS, ...NUMBERS, "text", "rewards.NAME", "metrics.NAME"].sort().join(", ");
      throw new Error(`There is no field ${term.name}. Fields: ${known}. To search for these words, put them in "quotes".`);
    }
    if (!quoted && value.toLowerCase() === "none") return (row) => valueOf(row, field) === null;
    const test = isNumber ? numberTest(field, value) : textTest(term);
    return test && ((row) => {
      const found = valueOf(row, field);
      return found !== null && test(found);
    });
  }

  /** {test: summary -> boolean, problems: [sentence]}. Terms with a problem are left out of the test. */
  function compile(query) {
    const tests = [];
    const problems = [];
    for (const term of parse(query)) {
      try {
        const test = compileTerm(term);
        if (test) tests.push(term.not ? (row) => !test(row) : test);
      } catch (error) {
        problems.push(error.message);
      }
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

  // Changing a query.

  /** `field:value` for a text, with the value quoted where it must be. The language has no quote inside quotes: such a
   *  value is cut there, and finds more. `exact`: the whole text, where that can be written. */
  function written(field, value, exact) {
    if (/^[^\s"<>=][^\s]*$/.test(value) && (exact || value.toLowerCase() !== "none")) return `${field}:${exact ? "=" : ""}${value}`;
    if (value === "") return `${field}:none`;
    const longest = value.split('"').reduce((a, b) => (b.length > a.length ? b : a), "");
    return `${field}:"${longest}"`;
  }

  const joined = (terms) => terms.map((t) => t.raw).join(" ");

  const add = (query, ...terms) => [joined(parse(query)), ...terms].filter(Boolean).join(" ");

  const has = (query, written) => parse(query).some((t) => t.raw === written);

  /** The query with this term where it had none, and without it where it had one. */
  const toggle = (query, written) => (has(query, written)
    ? joined(parse(query).filter((t) => t.raw !== written)) : add(query, written));

  /** The query with these bounds of a number in place of others; `closed`: `high` belongs to it. */
  function setRange(query, field, low, high, closed) {
    const rest = joined(parse(query).filter((t) => t.field !== field || t.not));
    return low === high ? add(rest, `${field}:${low}`) : add(rest, `${field}:>=${low}`, `${field}:${closed ? "<=" : "<"}${high}`);
  }

  const remove = (query, index) => joined(parse(query).filter((_, i) => i !== index));

  return { parse, compile, sorted, written, toggle, has, setRange, remove, texts: TEXTS, numbers: NUMBERS };
})();
