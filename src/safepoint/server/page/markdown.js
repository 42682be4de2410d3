// Markdown as elements, never as HTML text: headings, lists, quotes, tables, code blocks, emphasis, links.

import { button, copy, icon, make } from "./dom.js";

const FENCE = /^(\s*)(`{3,}|~{3,})\s*([^`]*)$/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const INLINE = /(`+)(.+?)\1|\*\*(.+?)\*\*|__(.+?)__|\*([^\s*][^*]*?)\*|\b_([^_]+?)_\b|~~(.+?)~~|\[([^\]]+)\]\(([^)\s]+)\)|(https?:\/\/[^\s<>"')\]]+)/;

/** The elements that a text in Markdown stands for. */
export function markdown(text) {
  return blocks(text.split("\n"));
}

function blocks(lines) {
  const found = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) found.push(make("p", inline(paragraph.join("\n"))));
    paragraph = [];
  };
  for (let at = 0; at < lines.length; ) {
    const line = lines[at], rest = lines.slice(at);
    const [taken, element] = fence(rest) ?? heading(line) ?? rule(line) ?? quote(rest) ?? table(rest) ?? list(rest) ?? [0];
    if (taken) {
      flush();
      found.push(element);
      at += taken;
      continue;
    }
    if (line.trim()) paragraph.push(line);
    else flush();
    at += 1;
  }
  flush();
  return found;
}

function fence(lines) {
  const opened = FENCE.exec(lines[0]);
  if (!opened) return null;
  const [, indent, marks, language] = opened, body = [];
  let at = 1;
  for (; at < lines.length; at += 1) {
    if (lines[at].trim().startsWith(marks) && !lines[at].trim().slice(marks.length).trim()) break;
    body.push(lines[at].startsWith(indent) ? lines[at].slice(indent.length) : lines[at]);
  }
  return [Math.min(at + 1, lines.length), codeBlock(body.join("\n"), language.trim())];
}

export function codeBlock(text, title) {
  const copies = button("quiet tiny", [icon("copy"), "Copy"], () => copy(text, copies));
  const shown = make("pre", { tabindex: 0 });
  for (const line of text.split("\n")) {
    const tone = title === "diff" ? { "+": "add", "-": "del" }[line[0]] : undefined;
    shown.append(tone ? make(`span.${tone}`, line) : line, "\n");
  }
  return make("div.block", make("header", make("span", title || "text"), copies), shown);
}

function heading(line) {
  const found = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line);
  return found && [1, make(`h${Math.min(6, found[1].length + 2)}`, inline(found[2]))];
}

const rule = (line) => (/^\s*([-*_])(\s*\1){2,}\s*$/.test(line) ? [1, make("hr")] : null);

function quote(lines) {
  const count = lines.findIndex((line) => !/^\s*>/.test(line));
  const taken = count < 0 ? lines.length : count;
  return taken ? [taken, make("blockquote", blocks(lines.slice(0, taken).map((line) => line.replace(/^\s*> ?/, ""))))] : null;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((cell) => cell.trim());

function table(lines) {
  if (lines.length < 2 || !lines[0].includes("|") || !/^\s*\|?(\s*:?-+:?\s*\|)+\s*:?-*:?\s*$/.test(lines[1])) return null;
  const end = lines.findIndex((line, at) => at > 1 && !line.includes("|"));
  const rows = lines.slice(2, end < 0 ? undefined : end).map((line) => make("tr", cells(line).map((cell) => make("td", inline(cell)))));
  const head = make("thead", make("tr", cells(lines[0]).map((cell) => make("th", inline(cell)))));
  return [rows.length + 2, make("div.table", { tabindex: 0 }, make("table", head, make("tbody", rows)))];
}

function list(lines) {
  const first = ITEM.exec(lines[0]);
  if (!first) return null;
  const depth = first[1].length, ordered = /\d/.test(first[2]), items = [];
  let at = 0;
  for (; at < lines.length; at += 1) {
    const item = ITEM.exec(lines[at]), indent = /^\s*/.exec(lines[at])[0].length;
    if (item && indent <= depth) {
      if (indent < depth || /\d/.test(item[2]) !== ordered) break;
      items.push([item[3]]);
    } else if (indent > depth || (!lines[at].trim() && ITEM.test(lines[at + 1] ?? ""))) items.at(-1).push(lines[at].slice(Math.min(indent, depth + 2)));
    else break;
  }
  const start = ordered ? Number.parseInt(first[2], 10) : undefined;
  return [at, make(ordered ? "ol" : "ul", { start: start > 1 ? start : undefined }, items.map(listItem))];
}

function listItem([first, ...more]) {
  const inner = more.some((line) => line.trim()) ? blocks(more) : [];
  return make("li", inline(first), inner);
}

function inline(text) {
  const found = [];
  for (let rest = text; rest; ) {
    const next = INLINE.exec(rest);
    if (!next) return [...found, rest];
    if (next.index) found.push(rest.slice(0, next.index));
    found.push(styled(next));
    rest = rest.slice(next.index + next[0].length);
  }
  return found;
}

function styled([whole, , code, bold, bold2, italic, italic2, struck, label, address, bare]) {
  if (code !== undefined) return make("code", code);
  if (bold ?? bold2) return make("strong", inline(bold ?? bold2));
  if (italic ?? italic2) return make("em", inline(italic ?? italic2));
  if (struck) return make("s", inline(struck));
  const target = address ?? bare;
  if (!/^https?:\/\//i.test(target)) return whole; // a script, or a place on this server that nobody meant
  return make("a", { href: target, target: "_blank", rel: "noopener noreferrer" }, label ?? bare);
}
