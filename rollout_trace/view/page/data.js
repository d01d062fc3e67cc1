// Where the page gets its data: from the server below its own address, or from JSON inside the page. Both providers
// have the same methods; each returns a promise, which is rejected with an Error whose message is a sentence.
RT.data = (() => {
  const PAGE_OF_STEPS = 50;
  const KEPT = 20;

  function server() {
    async function get(path, query) {
      const kept = Object.entries(query || {}).filter(([, v]) => v !== null && v !== undefined && v !== "" && v !== false);
      const tail = new URLSearchParams(kept.map(([k, v]) => [k, v === true ? "1" : String(v)])).toString();
      return answer(fetch(`api/${path}${tail ? "?" + tail : ""}`, { cache: "no-store", credentials: "same-origin" }));
    }

    async function post(path, body) {
      return answer(fetch(`api/${path}`, {
        method: "POST", credentials: "same-origin", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
      }));
    }

    async function answer(fetched) {
      let response;
      try {
        response = await fetched;
      } catch {
        throw new Error("the page's server does not answer: is rollout-trace view still running?");
      }
      const body = await response.json().catch(() => null);
      if (!response.ok) throw new Error((body && body.error) || `the page's server answered with status ${response.status}`);
      if (body === null) throw new Error("the page's server answered with something else than JSON");
      return body;
    }

    return {
      info: () => get("info"),
      rows: (since, after) => get("rows", { since, after }),
      search: (where) => get("search", { where }),
      trajectory: (key) => get("trajectory", { key }),
      steps: (key, first, end) => get("steps", { key, first, end: Math.min(end, first + PAGE_OF_STEPS) }),
      raw: (key, step) => get("raw", { key, step }),
      annotate: (key, values) => post("annotate", { key, values }),
    };
  }

  /** What an element of compressed JSON holds. */
  async function unpacked(element) {
    const bytes = Uint8Array.from(atob(element.textContent.trim()), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(stream).json();
  }

  /** The data inside the page: {info, summaries: [Summary + key], names}, and an element a trajectory: {file, outline, steps,
   *  raw?}. The latest ones stay unpacked. */
  function embedded(element) {
    const loaded = unpacked(element);
    const kept = new Map();

    function one(key) {
      if (!kept.has(key)) {
        const place = document.getElementById(`rollout-${key}`);
        if (!place) return Promise.reject(new Error(`this file has no trajectory ${key}: it was left out when the file was written`));
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
        throw new Error(`A page in a file knows the list alone, not ${where}: open the recorded file with rollout-trace view.`);
      },
      trajectory: async (key) => {
        const { file, outline } = await one(key);
        return { ...outline, key, file };
      },
      steps: async (key, first, end) => {
        const [{ steps }, { names }] = await Promise.all([one(key), loaded]);
        return steps.slice(first, Math.min(end, first + PAGE_OF_STEPS)).map((step) => RT.embedded.step(step, names));
      },
      raw: async (key, step) => ((await one(key)).raw || [])[step] || { request: null, response: null, line: null },
      annotate: async () => {
        throw new Error("a page in a file cannot write notes: open the recorded file with rollout-trace view");
      },
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

  const GRADES = { info: 1, warning: 2, fatal: 3 };

  function sortValue(row, field) {
    const value = row[field];
    if (field === "grade") return GRADES[value] || 0;
    if (value === null || value === undefined || value === "") return null;
    if (Array.isArray(value)) return value.length ? value.join(" ").toLowerCase() : null;
    if (typeof value === "object") return Object.values(value).reduce((a, b) => a + b, 0);
    return typeof value === "string" ? value.toLowerCase() : value;
  }

  /** The rows in order of a field; rows without it come last in both directions; equal ones stay as they were. */
  function sorted(some, field, reverse) {
    if (!field) return reverse ? [...some].reverse() : some;
    const sign = reverse ? -1 : 1;
    return some.map((row) => [sortValue(row, field), row]).sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return a < b ? -sign : a > b ? sign : 0;
    }).map(([, row]) => row);
  }

  /** The rows with those that one opened behind it, as far as both are there. */
  function underParents(some) {
    const ids = new Set(some.map((row) => row.id));
    const parentOf = (row) => (row.parent && row.parent !== row.id && ids.has(row.parent) ? row.parent : null);
    if (!some.some(parentOf)) return some;
    const below = RT.dom.grouped(some, parentOf);
    const found = new Set();
    // Those whose parents are each other's are below none: they come last.
    for (const start of [...(below.get(null) || []), ...some]) {
      const waiting = [start];
      while (waiting.length) {
        const row = waiting.pop();
        if (found.has(row)) continue;
        found.add(row);
        // Taken from the end.
        const children = below.get(row.id) || [];
        for (let i = children.length - 1; i >= 0; i -= 1) waiting.push(children[i]);
      }
    }
    return [...found];
  }

  return {
    info: provider.info,
    raw: provider.raw,
    sorted,
    underParents,
    list: async ({ query = "", sort = "", reverse = false, offset = 0, limit = 100 }) => {
      const { rows: some, problems } = await matching(query);
      return { total: rows.size, matched: some.length, problems, rows: (sort ? sorted(some, sort, reverse) : underParents(sorted(some, sort, reverse))).slice(offset, offset + limit) };
    },
    aggregate: async ({ query = "" }) => RT.aggregate((await matching(query)).rows),
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
