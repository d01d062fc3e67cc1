// Markdown as nodes, for reading. Texts go in as text nodes alone: HTML in them stays text, links are not followed, and
// nothing is loaded. What is no Markdown stays as it was written.
RT.markdown = (() => {
  const MOST = 100000; // characters that are read as Markdown
  const DEEPEST = 8;
  const GROUP = { tabindex: "0", role: "group" };

  // Bounded, so that marks without an end cost little, and nothing in them can be matched in two ways: code, bold,
  // italics, struck out, link or image, escape. Texts come from models.
  const INLINE = new RegExp([
    /(`{1,3})([^`]{1,2000})\1/, /\*\*(?!\s)(.{1,2000}?)\*\*/, /(?<![\w*])([*_])(?![\s*_])([^*_\n]{1,500})\4(?!\w)/,
    /~~(.{1,500}?)~~/, /!?\[([^[\]\n]{1,500})\]\(([^()\s]{1,500})(?:\s[^)\n]{0,200})?\)/,
    /\\([\\`*_{}[\]()#+.!|~>-])/,
  ].map((one) => one.source).join("|"), "gs");
  const FENCE = /^ {0,3}(`{3,}(?!`)|~{3,}(?!~))([^`]*)$/;
  const HEADING = /^ {0,3}#{1,6}\s+([^]*)/;
  const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
  const QUOTE = /^ {0,3}> ?/;
  const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(?=\S)/;
  const DASHES = /^\|?(?:\s*:?-+:?\s*\|)+(?:\s*:?-+:?)?$/;

  function inline(text, depth) {
    if (depth > DEEPEST) return [text];
    const found = [];
    let done = 0;
    for (const match of text.matchAll(INLINE)) {
      const [whole, , code, bold, , italic, struck, label, address, escaped] = match;
      found.push(text.slice(done, match.index));
      done = match.index + whole.length;
      if (code !== undefined) found.push(el("code", code));
      else if (bold !== undefined) found.push(el("strong", inline(bold, depth + 1)));
      else if (italic !== undefined) found.push(el("em", inline(italic, depth + 1)));
      else if (struck !== undefined) found.push(el("del", inline(struck, depth + 1)));
      else if (label !== undefined) found.push(inline(label, depth + 1), label !== address && soft(` (${address})`));
      else found.push(escaped);
    }
    return [...found, text.slice(done)].filter((one) => one !== "");
  }

  /** The lines from `from` for which `holds` is true, and the index behind them. */
  function run(lines, from, holds) {
    let end = from;
    while (end < lines.length && holds(lines[end], end)) end += 1;
    return [lines.slice(from, end), end];
  }

  /** The text of a heading without the marks that may close it: "C# #" is "C#". */
  function withoutMarks(text) {
    const trimmed = text.trim();
    let end = trimmed.length;
    while (trimmed[end - 1] === "#") end -= 1;
    return /\S/.test(trimmed.charAt(end - 1)) ? trimmed : trimmed.slice(0, end).trim();
  }

  const isBlank = (line) => !line.trim();
  const begins = (line) => [FENCE, HEADING, RULE, QUOTE, ITEM].some((one) => one.test(line));
  const isTable = (lines, i) => i + 1 < lines.length && lines[i].includes("|") && DASHES.test(lines[i + 1].trim());

  function blocks(lines, depth) {
    const found = [];
    for (let i = 0; i < lines.length;) {
      const [node, next] = isBlank(lines[i]) ? [null, i + 1] : block(lines, i, depth);
      found.push(node);
      i = next;
    }
    return found;
  }

  function block(lines, i, depth) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    if (fence) {
      const [, marks, name] = fence;
      const isEnd = (one) => one.trim().startsWith(marks) && isBlank(one.trim().replaceAll(marks[0], ""));
      const [inside, end] = run(lines, i + 1, (one) => !isEnd(one));
      return [el("pre", { ...GROUP, "aria-label": name.trim() || "code" }, el("code", inside.join("\n"))), end + 1];
    }
    const heading = HEADING.exec(line);
    if (heading) return [el("p.md-heading", inline(withoutMarks(heading[1]), 0)), i + 1];
    if (RULE.test(line)) return [el("hr"), i + 1];
    if (depth < DEEPEST && QUOTE.test(line)) {
      const [quoted, end] = run(lines, i, (one) => QUOTE.test(one));
      return [el("blockquote", blocks(quoted.map((one) => one.replace(QUOTE, "")), depth + 1)), end];
    }
    if (depth < DEEPEST && ITEM.test(line)) return list(lines, i, depth);
    if (isTable(lines, i)) return table(lines, i);
    const [text, end] = run(lines, i, (one, at) => at === i || !(isBlank(one) || begins(one) || isTable(lines, at)));
    return [el("p", inline(text.join("\n"), 0)), end];
  }

  function list(lines, from, depth) {
    const [, indent, mark] = ITEM.exec(lines[from]);
    const isNumbered = /\d/.test(mark);
    const items = [];
    let i = from;
    while (i < lines.length) {
      const found = ITEM.exec(lines[i]);
      if (!found || found[1].length !== indent.length || RULE.test(lines[i])) break;
      if (/\d/.test(found[2]) !== isNumbered) break;
      const width = found[0].length;
      const goesOn = (one) => one !== undefined && /^\s/.test(one) && !isBlank(one);
      const [rest, end] = run(lines, i + 1, (one, at) => (isBlank(one) ? goesOn(lines[at + 1])
        : one.search(/\S/) > indent.length || !begins(one) && !isBlank(lines[at - 1])));
      const unindented = (one) => one.slice(Math.min(width, Math.max(0, one.search(/\S/))));
      const inside = [lines[i].slice(width), ...rest.map(unindented)];
      items.push(el("li", blocks(inside, depth + 1)));
      i = end;
    }
    return [el(isNumbered ? "ol" : "ul", isNumbered ? { start: parseInt(mark, 10) } : {}, items), i];
  }

  const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((one) => one.trim());

  function table(lines, from) {
    const [rows, end] = run(lines, from + 2, (one) => !isBlank(one) && one.includes("|"));
    const row = (line, tag) => el("tr", cells(line).map((one) => el(tag, {}, inline(one, 0))));
    const all = el("table", el("thead", row(lines[from], "th")), el("tbody", rows.map((one) => row(one, "td"))));
    return [el("div.md-table", { ...GROUP, "aria-label": "table" }, all), end];
  }

  /** An element with a text, read as Markdown; a longer one is plain behind its beginning. */
  function render(text) {
    const head = text.slice(0, MOST);
    return el("div.md", blocks(head.split(/\r?\n/), 0), text.length > MOST && long(text.slice(MOST)));
  }

  return { render };
})();
