// Where the page gets its data: from the server below its own address, or from JSON inside the page. Both providers
// have the same methods; each returns a promise, which is rejected with an Error whose message is a sentence.
RT.data = (() => {
  const KEPT = 20;

  function server() {
    async function ask(path, options) {
      const response = await fetch(`api/${path}`, options).catch(() => {
        throw new Error("the page's server does not answer: is rollout-trace view still running?");
      });
      const body = await response.json().catch(() => null);
      if (response.ok && body !== null) return body;
      const why = response.ok ? "something else than JSON" : `status ${response.status}`;
      throw new Error((body && body.error) || `the page's server answered with ${why}`);
    }

    const get = (path, query) => ask(path + queryString(query));

    return {
      info: () => ask("info"),
      rows: (since, after) => get("rows", { since, after }),
      search: (where) => get("search", { where }),
      trajectory: (key) => get("trajectory", { key }),
      steps: (key, first, end) => get("steps", { key, first, end }),
      raw: (key, step) => get("raw", { key, step }),
      annotate: (key, values) => ask("annotate", {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ key, values }),
      }),
    };
  }

  /** What an element of compressed JSON holds. */
  async function unpacked(element) {
    const bytes = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  const thousandths = (value) => (value === null ? null : value / 1000);

  /** The tokens of a step as the server sends them: undoes the Packer of rollout_trace/view/static.py. `names`: the
   *  tokens of the whole page, {texts, ids}. */
  function tokensOf(packed, names) {
    const { n, no_texts, no_ids, logprobs, entropy, alternatives, log_ratios } = packed;
    const column = (name) => packed.names.map((number) => names[name][number]);
    const [texts, ids] = [no_texts ? null : column("texts"), no_ids ? null : column("ids")];
    const found = { n, texts, ids, logprobs, log_ratios };
    if (entropy) found.entropy = entropy.map(thousandths);
    if (alternatives) found.alternatives = alternativesOf(alternatives, packed, names);
    return found;
  }

  function alternativesOf(alternatives, packed, names) {
    let [at, next] = [0, 0];
    return alternatives.counts.map((n, token) => Array.from({ length: n }, () => {
      const number = alternatives.names[at++];
      const name = number < 0 ? packed.names[token] : number;
      const logprob = number < 0 ? (packed.logprobs || [])[token] : thousandths(alternatives.logprobs[next++]);
      return [names.texts[name], names.ids[name], logprob];
    }));
  }

  /** The data inside the page: {info, summaries: [Summary + key], names}, and an element a trajectory: {outline, steps,
   *  raw?}. The latest ones stay unpacked. */
  function embedded(element) {
    const loaded = unpacked(element);
    const kept = new Map();

    async function one(key) {
      if (!kept.has(key)) {
        const place = document.getElementById(`rollout-${key}`);
        if (!place) throw new Error(`this file has no trajectory ${key}: it was left out when the file was written`);
        kept.set(key, unpacked(place));
        if (kept.size > KEPT) kept.delete(kept.keys().next().value);
      }
      return kept.get(key);
    }

    return {
      info: async () => {
        const { info, summaries } = await loaded;
        return { generation: 1, ...info, static: true, writable: false, indexing: null, total: summaries.length };
      },
      rows: async () => ({ generation: 1, epoch: 1, rows: (await loaded).summaries }),
      search: async (where) => {
        const how = "open the recorded file with rollout-trace view";
        throw new Error(`A page in a file knows the list alone, not ${where}: ${how}.`);
      },
      trajectory: async (key) => (await one(key)).outline,
      steps: async (key, first, end) => {
        const [{ steps }, { names }] = await Promise.all([one(key), loaded]);
        const whole = (step) => ({ ...step, tokens: step.tokens && tokensOf(step.tokens, names) });
        return steps.slice(first, end).map(whole);
      },
      raw: async (key, step) => ((await one(key)).raw || [])[step] || {},
    };
  }

  const inside = document.getElementById("rollout-data");
  const provider = inside ? embedded(inside) : server();

  // The list: every summary is here, and is asked for again when it changes.

  const rows = new Map();
  let [generation, epoch, updating, found, ordered] = [0, null, null, null, null];

  /** Gets what has changed. Those that ask meanwhile get the same answer. */
  const update = () => (updating ??= updated().finally(() => { updating = null; }));

  async function updated() {
    let [reached, after] = [null, 0];
    do {
      const [since, from] = [generation, after];
      const page = await provider.rows(since, from);
      if (epoch !== page.epoch) {
        // Rows were deleted: all are asked for anew.
        rows.clear();
        [epoch, generation, after] = [page.epoch, 0, 0];
        if (since || from) {
          reached = null;
          continue;
        }
      }
      reached ??= page.generation;
      after = page.after;
      for (const row of page.rows) rows.set(row.key, RT.defaults.summary(row));
    } while (after || !reached);
    if (generation !== reached) [found, ordered] = [null, null];
    generation = reached;
  }

  /** All rows, as in the files. */
  function inOrder() {
    if (ordered) return ordered;
    const placed = [...rows.values()].map((row) => [...row.key.split("-").map(parseFloat), row.key.length, row]);
    ordered = placed.sort((a, b) => a[0] - b[0] || a[1] - b[1] || a[2] - b[2]).map((one) => one[3]);
    return ordered;
  }

  /** The rows that a search finds: {query, rows, problems}. */
  async function matching(query) {
    await update();
    if (found && found.query === query) return found;
    const [problems, tests, at] = [new Set(), [], generation];
    let isDone = true;
    for (const part of RT.search.terms(query)) {
      const { value, problem, elsewhere } = RT.search.compile(part);
      if (problem) problems.add(`${part}: ${problem}`);
      if (value) tests.push((row) => RT.expression.truth(value(row)));
      if (!elsewhere) continue;
      try {
        const { keys, share, problem: failed } = await provider.search(part);
        const wanted = new Set(keys);
        tests.push((row) => wanted.has(row.key));
        if (failed) problems.add(failed);
        if (share < 1) problems.add(`The files are being searched for ${part}: ${Math.floor(100 * share)}% so far.`);
        isDone = isDone && share === 1;
      } catch (error) {
        problems.add(error.message);
      }
    }
    const test = (row) => tests.every((one) => {
      try {
        return one(row);
      } catch (error) {
        problems.add(`${error.message} (trajectory ${row.id})`);
        return false;
      }
    });
    const matches = { query, rows: inOrder().filter(test), problems: [...problems].slice(0, 5) };
    if (isDone && at === generation) found = matches;
    return matches;
  }

  function sortValue(value) {
    if (!known(value) || value === "") return null;
    if (Array.isArray(value)) return value.length ? value.join(" ").toLowerCase() : null;
    if (typeof value === "object") return sum(Object.values(value));
    return typeof value === "string" ? value.toLowerCase() : value;
  }

  const sorted = (some, field, reverse) => sortedBy(some, (row) => sortValue(row[field]), reverse);

  /** The rows with those that one opened behind it, as far as both are there. */
  function underParents(some) {
    const ids = new Set(some.map((row) => row.id));
    const parentOf = (row) => (row.parent && row.parent !== row.id && ids.has(row.parent) ? row.parent : null);
    if (!some.some(parentOf)) return some;
    const below = Map.groupBy(some, parentOf);
    const placed = new Set();
    // Those whose parents are each other's are below none: they come last.
    for (const start of [...(below.get(null) || []), ...some]) {
      const waiting = [start];
      while (waiting.length) {
        const row = waiting.pop();
        if (placed.has(row)) continue;
        placed.add(row);
        // Taken from the end.
        for (const child of (below.get(row.id) || []).toReversed()) waiting.push(child);
      }
    }
    return [...placed];
  }

  return {
    info: provider.info,
    raw: provider.raw,
    sorted,
    underParents,
    list: async ({ query = "", sort = "", reverse = false, offset = 0, limit = 100 }) => {
      const { rows: some, problems } = await matching(query);
      const placed = sort ? sorted(some, sort, reverse) : underParents(some);
      return { total: rows.size, matched: some.length, problems, rows: placed.slice(offset, offset + limit) };
    },
    aggregate: async (query) => RT.aggregate((await matching(query)).rows),
    trajectory: async (key) => {
      const [outline] = await Promise.all([provider.trajectory(key), update()]);
      const { episode } = outline.summary;
      const family = episode ? inOrder().filter((row) => row.episode === episode) : [];
      return { ...RT.defaults.outline(outline), family: sorted(family, "started") };
    },
    steps: async (key, first, end) => (await provider.steps(key, first, end)).map(RT.defaults.step),
    annotate: async (key, values) => RT.defaults.summary(await provider.annotate(key, values)),
  };
})();
