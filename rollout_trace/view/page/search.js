// The search box: an expression, words, or both joined by "and". Words are looked for in the texts that the list has.
RT.search = (() => {
  const SEARCHED = ["id", "name", "task", "group", "excerpt", "note", "error"];
  const quoted = JSON.stringify;

  /** The parts of a text that a top-level "and" joins; the whole text where an "or", "if" or "for" would be torn. */
  function parts(text) {
    const found = [""];
    let depth = 0;
    for (const [piece] of text.matchAll(/"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|\s(?:and|or|if|for)(?=\s)|[^]/g)) {
      depth += "([".includes(piece) - ")]".includes(piece);
      if (depth <= 0 && /^\s(or|if|for)$/.test(piece)) return [text.trim()];
      if (depth <= 0 && /^\sand$/.test(piece)) found.push("");
      else found[found.length - 1] += piece;
    }
    return found.map((one) => one.trim()).filter(Boolean);
  }

  /** The text as parts, each in the spelling of expressions or words. */
  const terms = (text) => parts(text).flatMap((part) => (isExpression(part) ? [part] : before(part) || [part]));

  const isWord = (part) => /^(?:[\p{L}_][\p{L}\p{N}_]*|"[^"]*"|'[^']*')$/u.test(part);
  const isExpression = (part) => !isWord(part) && !RT.expression.compile(part).problem;

  /** Whether a part is an expression, or was to be one and has a fault. */
  const isMeantAsOne = (part) => isExpression(part) || /[=<>()[\]]/.test(part);

  /** What finds the rows for which a part is true: {value}, {elsewhere}, or {problem}. */
  function compile(part) {
    if (isMeantAsOne(part)) return RT.expression.compile(part);
    const wanted = words(part);
    return {
      value: (row) => {
        const text = SEARCHED.map((field) => row[field] ?? "").join("\n").toLowerCase();
        return wanted.every((word) => text.includes(word));
      },
    };
  }

  const words = (part) =>
    [...part.matchAll(/"([^"]*)"?|(\S+)/g)].map(([, phrase, bare]) => (phrase ?? bare).toLowerCase());

  // The language of earlier versions: status:failed reward:>0.5 -finding:drift "two words".

  const RENAMED = {
    agent: "agents", model: "models", finding: "findings", started: "started_at", steps: "n_steps",
    tool_runs: "n_tool_runs",
  };
  const NAMES = ["agents", "models", "left_out", "findings", "drift"];
  const TEXTS = ["id", "name", "task", "group", "episode", "parent", "status", "stop_reason", "error", "currency",
    "grade", "excerpt", "note", "task_id", "group_id", "text"];

  /** The terms of the earlier language as expressions; null where a text is not in it. */
  function before(text) {
    const found = [...text.matchAll(/(-?)(?:([A-Za-z_][\w.-]*):)?(?:"([^"]*)"?|([^\s"]\S*))/g)];
    const isKnown = ([, , name]) => name && RT.expression.compile(named(name)).problem === undefined;
    if (!found.some(isKnown)) return null;
    return found.map((one) => {
      const [, minus, , value, bare] = one;
      const part = isKnown(one) ? written(one) : quoted(value ?? bare);
      return minus ? `not (${part})` : part;
    });
  }

  const PARTED = /^(reward|metric)s?\./;
  const named = (name) => RENAMED[name.toLowerCase()] ||
    (PARTED.test(name) ? name.replace(PARTED, "$1s.") : name.toLowerCase());

  function written([, , given, value, bare]) {
    const name = named(given);
    const isText = TEXTS.includes(name);
    if (bare === "none") return isText || NAMES.includes(name) ? `not ${name}` : `${name} is None`;
    const [, sign, rest] = /^(>=|<=|>|<|=|)([^]*)$/.exec(value ?? bare);
    if (NAMES.includes(name)) return `${quoted(rest)} in ${name}`;
    // Runs end as failed; their calls as error.
    if (name === "status" && rest === "error") return 'status in ["error", "failed"]';
    const lower = quoted(rest.toLowerCase());
    if (isText) return sign ? `lower(${name}) == ${lower}` : `${lower} in lower(${name})`;
    const literal = name === "started_at" ? quoted : String;
    const [low, high] = rest.split("..");
    const bounds = [low && `${literal(low)} <=`, name, high && `<= ${literal(high)}`];
    if (high !== undefined) return bounds.filter(Boolean).join(" ");
    return `${name} ${sign === "=" ? "==" : sign || "=="} ${literal(rest)}`;
  }

  // Changing a search.

  /** A part that can stand beside others, whatever "or" it has. */
  function beside(part) {
    if (parts(`${part} and x`).length > 1) return part;
    return isExpression(part) ? `(${part})` : words(part).map(quoted).join(" and ");
  }

  const joined = (some) => (some.length > 1 ? some.map(beside) : some).join(" and ");

  /** The search as one expression of rollout-trace filter; "" for an empty one. */
  function expression(text) {
    const fields = SEARCHED.map((field) => (field === "task" ? "task_id" : field));
    const looked = (word) => fields.map((field) => `${quoted(word)} in lower(${field})`).join(" or ");
    const found = terms(text).flatMap((part) => (isMeantAsOne(part) ? [part] : words(part).map(looked)));
    // In brackets, one that begins with a minus is no option of a command.
    const isBare = found.length < 2 && !found.join().startsWith("-");
    return found.map((part) => (isBare ? part : `(${part})`)).join(" and ");
  }

  const has = (text, part) => terms(text).includes(part);

  /** The search with this part where it had none, and without it where it had one. */
  const toggle = (text, part) =>
    joined(has(text, part) ? terms(text).filter((one) => one !== part) : [...terms(text), part]);

  const remove = (text, index) => joined(terms(text).filter((_, i) => i !== index));

  /** The search with these bounds of a name, in place of others. `closed`: `high` belongs to them. */
  function setRange(text, name, low, high, closed) {
    const own = new RegExp(`^(?:[^\\s]+ <=? )?${name}(?: (?:==|[<>]=?) [^\\s]+)?$`);
    const range = `${quoted(low)} <= ${name} ${closed ? "<=" : "<"} ${quoted(high)}`;
    const part = low === high ? `${name} == ${quoted(low)}` : range;
    return joined([...terms(text).filter((one) => !own.test(one)), part]);
  }

  return { terms, compile, expression, has, toggle, remove, setRange };
})();
