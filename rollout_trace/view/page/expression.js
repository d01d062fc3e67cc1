// Expressions in Python's syntax on the summaries of trajectories: view/expression.py on what the list knows. Both are
// tested with tests/data/expressions.json.
//
// What is not known is null, and makes each comparison false; `x is None` asks for it. What the list does not know
// (steps, tool runs, all texts, metadata), arithmetic and loops are left to the server: compile() says `elsewhere`.
RT.expression = (() => {
  const TOKEN = new RegExp(["\\s*(?:(\\d+(?:\\.\\d*)?(?:[eE][+-]?\\d+)?|\\.\\d+(?:[eE][+-]?\\d+)?)", // a number
    "(r?)(\"(?:[^\"\\\\\\n]|\\\\.)*\"|'(?:[^'\\\\\\n]|\\\\.)*')", // a text
    "([\\p{L}_][\\p{L}\\p{N}_]*)", "(\\*\\*|//|[=!<>]=|[-+*/%<>=()[\\],.])", "(\\S)|$)"].join("|"), "uy");
  const KEYWORDS = ["and", "or", "not", "in", "is", "if", "else", "for", "lambda", "True", "False", "None"];
  const WHOLE = ["metadata", "environment", "steps", "tool_runs", "tools", "text"];
  const SAME = ["id", "name", "status", "stop_reason", "error", "reward", "rewards", "metrics", "note", "task", "group",
    "index", "episode", "parent", "forked_from", "attempt", "seconds", "tool_errors", "agents", "models", "calls",
    "input_tokens", "output_tokens", "cost", "currency", "latency", "first_token", "rows", "tokens", "trained",
    "left_out", "findings", "grade", "drift", "excerpt"];
  const FIELDS = {
    ...Object.fromEntries(SAME.map((name) => [name, name])), task_id: "task", group_id: "group", rollout_index: "index",
    episode_id: "episode", parent_id: "parent", n_steps: "steps", n_tool_runs: "tool_runs",
  };
  const NAMES = {
    ...Object.fromEntries(Object.entries(FIELDS).map(([name, field]) => [name, (row) => row[field] ?? null])),
    started_at: (row) => moment(row.started),
    ended_at: (row) => (known(row.started) && known(row.seconds) ? moment(row.started + row.seconds) : null),
  };

  /** For what only the server can evaluate. */
  class Elsewhere extends Error {}

  const isNumber = (value) => typeof value === "number" || typeof value === "boolean";
  const isText = (value) => typeof value === "string";
  const truth = (value) => (known(value) && typeof value === "object" ? Object.keys(value).length > 0 : Boolean(value));
  const shown = (value) => JSON.stringify(value);

  /** A Unix time as Python writes it: 2026-11-21T08:30:00.250000+00:00. */
  function moment(unix) {
    if (!known(unix)) return null;
    const micros = Math.round((unix - Math.floor(unix)) * 1e6);
    const whole = new Date(Math.floor(unix) * 1000 + (micros === 1e6 ? 1000 : 0)).toISOString().slice(0, 19);
    return `${whole}${micros % 1e6 ? `.${String(micros).padStart(6, "0")}` : ""}+00:00`;
  }

  const ESCAPES = {
    n: "\n", t: "\t", r: "\r", "\\": "\\", "'": "'", '"': '"', 0: "\0", a: "\x07", b: "\b", f: "\f", v: "\v",
  };
  const ESCAPED = /\\(?:x([\da-fA-F]{2})|u([\da-fA-F]{4})|U([\da-fA-F]{8})|([^]))/g;

  const unescaped = (text) => text.replace(ESCAPED, (all, x, u, wide, one) =>
    (one === undefined ? String.fromCodePoint(parseInt(x || u || wide, 16)) : ESCAPES[one] ?? all));

  function tokenize(text) {
    const found = [];
    for (TOKEN.lastIndex = 0; TOKEN.lastIndex < text.length;) {
      const [all, number, raw, quoted, name, sign, other] = TOKEN.exec(text);
      if (other === "{") throw new Elsewhere();
      if (other) throw new Error(`${other} is not expected there.`);
      if (number) found.push({ kind: "value", value: Number(number) });
      else if (quoted) found.push({ kind: "value", value: raw ? quoted.slice(1, -1) : unescaped(quoted.slice(1, -1)) });
      else if (name) found.push({ kind: KEYWORDS.includes(name) ? "sign" : "name", value: name });
      else if (sign) found.push({ kind: "sign", value: sign });
      else if (!all.trim()) break;
    }
    return found;
  }

  // Comparisons and arithmetic.

  // By code points, as Python compares texts.
  const points = (text) => Array.from(text, (c) => c.codePointAt(0).toString(16).padStart(6, "0")).join("");

  function order(a, b) {
    if (isNumber(a) && isNumber(b)) return a - b;
    if (!isText(a) || !isText(b)) throw new Error(`${shown(a)} cannot be compared with ${shown(b)}.`);
    const [x, y] = [points(a), points(b)];
    return x < y ? -1 : x > y ? 1 : 0;
  }

  const same = (a, b) =>
    (isNumber(a) && isNumber(b) ? Number(a) === Number(b) : isText(a) === isText(b) && shown(a) === shown(b));

  const items = (value) => {
    if (!known(value)) return [];
    if (typeof value !== "object") throw new Error(`expected a list, got ${shown(value)}.`);
    return Array.isArray(value) ? value : Object.keys(value);
  };

  function contains(part, whole) {
    if (!isText(whole)) return items(whole).some((one) => same(part, one));
    if (!isText(part)) throw new Error(`expected a text before "in", got ${shown(part)}.`);
    return whole.includes(part);
  }

  const COMPARE = {
    "==": same, "!=": (a, b) => !same(a, b), "<": (a, b) => order(a, b) < 0, "<=": (a, b) => order(a, b) <= 0,
    ">": (a, b) => order(a, b) > 0, ">=": (a, b) => order(a, b) >= 0, in: contains, "not in": (a, b) => !contains(a, b),
  };

  const texts = (name, values) => values.every((value) => {
    if (known(value) && !isText(value)) throw new Error(`${name} needs a text, not ${shown(value)}.`);
    return known(value);
  });

  const FUNCTIONS = {
    len: [1, (value) => {
      if (isNumber(value)) throw new Error(`${shown(value)} has no length.`);
      return known(value) ? (isText(value) ? [...value] : items(value)).length : null;
    }],
    lower: [1, (text) => (texts("lower", [text]) ? text.toLowerCase() : null)],
    startswith: [2, (text, part) => texts("startswith", [text, part]) && text.startsWith(part)],
    endswith: [2, (text, part) => texts("endswith", [text, part]) && text.endsWith(part)],
    matches: [2, (text, pattern) => texts("matches", [text, pattern]) && new RegExp(pattern, "u").test(text)],
  };

  function member(value, key, isField) {
    if (!known(value) || !known(key)) return null;
    const hasFields = typeof value === "object" && !Array.isArray(value);
    if (isField && !hasFields) throw new Error(`${shown(value)} has no field ${key}.`);
    if (isText(value) || Array.isArray(value)) {
      if (!Number.isInteger(key)) throw new Error(`the items of ${shown(value)} have numbers, not ${shown(key)}.`);
      return Array.from(value).at(key) ?? null;
    }
    if (typeof value !== "object") throw new Error(`${shown(value)} has no items.`);
    return Object.hasOwn(value, key) ? value[key] : null;
  }

  /** Reads an expression into a function of a row, from the weakest operator to the strongest. */
  class Parser {
    constructor(text) {
      this.tokens = tokenize(text);
      this.at = 0;
    }

    get next() {
      return this.tokens[this.at] || { kind: "end", value: "its end" };
    }

    take(...signs) {
      if (this.next.kind !== "sign" || !signs.includes(this.next.value)) return null;
      return this.tokens[this.at++].value;
    }

    need(sign) {
      if (this.take(sign)) return;
      if (["if", "for", "lambda"].includes(this.next.value)) throw new Elsewhere();
      throw new Error(`${sign} is expected before ${this.next.value}.`);
    }

    whole() {
      const value = this.or();
      if (["if", "for"].includes(this.next.value)) throw new Elsewhere();
      const hint = this.next.value === "=" ? ": did you mean ==" : "";
      if (this.next.kind !== "end") throw new Error(`${this.next.value} is not expected there${hint}.`);
      return value;
    }

    or() {
      const [left, right] = [this.and(), this.take("or") && this.or()];
      return right ? (row) => (truth(left(row)) ? left(row) : right(row)) : left;
    }

    and() {
      const [left, right] = [this.not(), this.take("and") && this.and()];
      return right ? (row) => (truth(left(row)) ? right(row) : left(row)) : left;
    }

    not() {
      if (!this.take("not")) return this.comparison();
      const value = this.not();
      return (row) => !truth(value(row));
    }

    comparison() {
      const tests = [];
      const first = this.postfix();
      let left = first;
      for (let sign; (sign = this.comparator());) {
        const [one, other] = [left, this.postfix()];
        const negated = sign === "is not" || sign === "!=";
        if (sign.startsWith("is") || ((one.none || other.none) && (sign === "==" || negated))) {
          const equal = (a, b) => (known(a) && known(b) ? same(a, b) : known(a) === known(b));
          tests.push((row) => equal(one(row), other(row)) !== negated);
        } else {
          const test = COMPARE[sign];
          tests.push((row) => known(one(row)) && known(other(row)) && test(one(row), other(row)));
        }
        left = other;
      }
      return tests.length ? (row) => tests.every((test) => test(row)) : first;
    }

    comparator() {
      const sign = this.take("==", "!=", "<", "<=", ">", ">=", "in", "is", "not");
      if (sign === "not") this.need("in");
      return sign === "not" ? "not in" : sign === "is" && this.take("not") ? "is not" : sign;
    }

    postfix() {
      const first = this.next;
      let value = this.atom();
      while (this.next.value === "." || this.next.value === "[") {
        if (first.value === "task" || first.value === "error") throw new Elsewhere();
        const object = value;
        const name = this.take(".") && this.tokens[this.at++];
        const key = name ? () => name.value : this.take("[") && this.or();
        if (!name) this.need("]");
        value = (row) => member(object(row), key(row), Boolean(name));
      }
      const areTexts = first.kind === "value" && this.next.kind === "value";
      if (ARITHMETIC.includes(this.next.value) || areTexts) throw new Elsewhere();
      return value;
    }

    atom() {
      const token = this.next;
      this.at += 1;
      if (token.kind === "value") return () => token.value;
      if (token.value === "-" && isNumber(this.next.value)) {
        const { value } = this.tokens[this.at++];
        return () => -value;
      }
      if (token.kind === "name") return this.take("(") ? this.call(token.value) : named(token.value);
      if (token.value in LITERALS) return Object.assign(() => LITERALS[token.value], { none: token.value === "None" });
      if (token.value === "[") return this.list("]");
      if (token.value !== "(") throw new Error(`${token.value} is not expected there.`);
      const value = this.or();
      if (this.next.value === ",") throw new Elsewhere();
      this.need(")");
      return value;
    }

    list(end) {
      const values = [];
      while (!this.take(end)) {
        values.push(this.or());
        if (!this.take(",")) {
          this.need(end);
          break;
        }
      }
      return Object.assign((row) => values.map((value) => value(row)), { n: values.length });
    }

    call(name) {
      if (["any", "all", "min", "max", "sum", "abs"].includes(name)) throw new Elsewhere();
      if (!Object.hasOwn(FUNCTIONS, name)) throw new Error(`There is no function ${name}.`);
      const [n, run] = FUNCTIONS[name];
      const values = this.list(")");
      if (values.n !== n) throw new Error(`${name} is called with ${n} value${n > 1 ? "s" : ""}.`);
      return (row) => run(...values(row));
    }
  }

  const ARITHMETIC = ["+", "-", "*", "/", "//", "%", "**"];
  const LITERALS = { True: true, False: false, None: null };

  function named(name) {
    if (WHOLE.includes(name)) throw new Elsewhere();
    if (Object.hasOwn(NAMES, name)) return NAMES[name];
    const all = [...Object.keys(NAMES), ...WHOLE].sort().join(", ");
    throw new Error(`There is no name ${name}: a text is written in quotes. There are ${all}.`);
  }

  /** {value: row -> value}, {problem: a sentence}, or {elsewhere: true}. `value` throws where it can't be evaluated. */
  function compile(text) {
    try {
      return { value: new Parser(text).whole() };
    } catch (error) {
      return error instanceof Elsewhere ? { elsewhere: true } : { problem: error.message };
    }
  }

  return { compile, truth, names: Object.keys(NAMES), whole: WHOLE };
})();
