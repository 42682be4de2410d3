// The timeline of a run: a lane for each agent and call over the seconds, with the asks to stop it. It can be saved.

import { make, shape } from "./dom.js";
import { nested } from "./tree.js";
import { AT_WORDS, callState, ending, inDoubt, seconds, summary } from "./words.js";

const LEGEND = [
  ["model", "model"],
  ["tool", "tool"],
  ["cut", "cut, in doubt"],
  ["lost", "let go, still running"],
  ["undo", "undo"],
  ["queue", "queued, never started"],
];
const TOKENS = ["bg", "ink", "soft", "faint", "line", "edge", "accent", "warn", "warn-weak", "ask"];

/** The figure of a tree, drawn for the width there is, with its legend. */
export function timeline(tree, me, width) {
  const drawing = draw(tree, me, width);
  const legend = make("p.legend", LEGEND.map(([kind, words]) => make("span", make(`i.key-${kind}`), words)));
  const detail = make("div.detail", { hidden: true, "aria-live": "polite" });
  drawing.addEventListener("click", (event) => {
    const path = event.target.closest("[data-path]")?.dataset.path, node = tree.nodes.find((each) => each.path === path);
    if (node) describe(detail, node, tree);
  });
  return [make("figure", { id: "timeline" }, drawing), legend, detail];
}

/** The drawing by itself: tokens become colours, so that it looks the same outside of the page. */
export function asFile(tree, me) {
  const drawing = draw(tree, me, 960), styles = getComputedStyle(document.documentElement);
  drawing.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  drawing.setAttribute("font-family", "Arial, sans-serif");
  drawing.prepend(shape("rect", { width: "100%", height: "100%", fill: "var(--bg)" }));
  const dark = matchMedia("(prefers-color-scheme: dark)").matches ? document.documentElement.dataset.theme !== "light" : document.documentElement.dataset.theme === "dark";
  return TOKENS.reduce((text, name) => {
    const pair = /light-dark\(([^,]+),\s*([^)]+)\)/.exec(styles.getPropertyValue(`--${name}`));
    return text.replaceAll(`var(--${name})`, pair ? pair[dark ? 2 : 1].trim() : styles.getPropertyValue(`--${name}`).trim());
  }, new XMLSerializer().serializeToString(drawing));
}

function lanes(tree) {
  const found = [];
  const add = ({ node, inside }, depth) => {
    found.push({ node, depth });
    for (const each of inside) add(each, depth + 1);
  };
  for (const each of nested(tree.nodes)) add(each, 0);
  return found;
}

function draw(tree, me, width) {
  const rows = lanes(tree), narrow = width < 560, left = narrow ? 4 : 132, right = narrow ? 4 : 132;
  const row = narrow ? 40 : 32, top = 46, height = top + rows.length * row + 4;
  const times = tree.nodes.flatMap((node) => [node.startedAt, node.endedAt]).filter(Boolean);
  const first = Math.min(...times, ...tree.asks.map((ask) => ask.time ?? Infinity)), live = ["queued", "live"].includes(tree.run.state);
  const last = Math.max(live ? tree.now : 0, ...times, first + 0.1), span = (last - first) * 1.04;
  const x = (at) => left + ((at - first) / span) * (width - left - right);
  const title = `${rows[0]?.node.name ?? "Run"} over ${seconds(last - first)}`;
  const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": title });
  svg.append(shape("title", {}, title));
  const text = (at, y, words, more = {}) => svg.append(shape("text", { x: at, y, "font-size": 12, fill: "var(--soft)", ...more }, words));
  grid(svg, text, x, first, span, height, narrow);
  const root = rows[0]?.node, ask = tree.asks[0];
  if (ask?.time) {
    const end = root?.endedAt ?? last;
    svg.append(shape("rect", { x: x(ask.time), y: 26, width: Math.max(1, x(end) - x(ask.time)), height: height - 26, fill: "var(--warn-weak)" }));
  }
  rows.forEach(({ node, depth }, at) => lane(svg, text, { node, depth, y: top + at * row, x, narrow, width, right, last, tree, me }));
  for (const each of tree.asks.filter((found) => found.time && found.path === root?.path)) {
    svg.append(shape("path", { d: `M${x(each.time)} 26V${height}`, stroke: "var(--ink)", "stroke-width": 1.5 }));
    const words = `${each.reason?.source === "user" ? "you" : each.reason?.source}: stop ${AT_WORDS[each.at[0]] ?? "at a safe point"}`;
    text(x(each.time) - 6, 38, words, { fill: "var(--ink)", "font-weight": 600, "text-anchor": x(each.time) > width / 3 ? "end" : "start" });
  }
  if (ask?.time && root?.endedAt && !narrow && width - x(root.endedAt) > 60) {
    svg.append(shape("path", { d: `M${x(root.endedAt)} 26V${height}`, stroke: "var(--warn)", "stroke-width": 1.5 }));
    text(x(root.endedAt) + 6, 38, `after ${seconds(root.endedAt - ask.time)}`, { fill: "var(--warn)", "font-weight": 600 });
  }
  return svg;
}

function grid(svg, text, x, first, span, height, narrow) {
  const step = [0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 3600].find((each) => span / each <= (narrow ? 4 : 8)) ?? 36000;
  for (let at = 0; at < span; at += step) {
    svg.append(shape("path", { d: `M${x(first + at)} 26V${height}`, stroke: "var(--line)" }));
    const words = step < 1 ? `${at.toFixed(1)} s` : at < 120 ? `${Math.round(at)} s` : `${Math.round(at / 60)} min`;
    text(x(first + at), 16, words, { fill: "var(--faint)", "text-anchor": at ? "middle" : "start" });
  }
}

function lane(svg, text, { node, depth, y, x, narrow, width, right, last, tree, me }) {
  const bar = narrow ? y + 19 : y + 7, tall = narrow ? 14 : 18, line = narrow ? y + 14 : y + 20;
  svg.append(shape("path", { d: `M0 ${y}H${width}`, stroke: "var(--line)", opacity: 0.6 }));
  const name = node.name.length > 18 ? `${node.name.slice(0, 17)}…` : node.name;
  text(4 + depth * 10, line, name, { fill: "var(--ink)", "font-weight": node.kind === "agent" ? 600 : 400 });
  const word = node.kind === "agent" ? (depth ? "" : ending(tree.run, me)) || (node.state === "running" ? "works" : "finished") : callState(node)[2] || (node.state === "running" ? "runs" : "finished");
  const short = word.split(",")[0].split(":")[0];
  text(narrow ? width - 4 : width - right + 14, line, short.toLowerCase(), { fill: inDoubt(node) ? "var(--warn)" : "var(--soft)", "text-anchor": narrow ? "end" : "start" });
  const box = (from, to, more, label) => {
    const wide = Math.max(3, x(to) - x(from) - 1);
    const drawn = shape("rect", { x: x(from), y: bar, width: wide, height: tall, rx: 3, "data-path": node.path, ...more });
    drawn.append(shape("title", {}, `${node.name}: ${seconds(to - from)}`));
    svg.append(drawn);
    if (label && label.length * 6 + 12 < wide) text(x(from) + 6, bar + tall / 2 + 4, label, { fill: "var(--bg)", "font-size": 11 });
  };
  for (const [from, to] of node.model ?? []) box(from, to ?? node.endedAt ?? last, { fill: "var(--accent)" });
  if (node.kind !== "tool") return;
  if (!node.startedAt) {
    const ask = tree.asks[0]?.time ?? last;
    svg.append(shape("path", { d: `M${x(Math.max(ask - (last - ask), 0) || ask) + 1} ${bar + tall / 2}H${x(ask)}`, stroke: "var(--edge)", "stroke-width": 2, "stroke-dasharray": "0 5", "stroke-linecap": "round" }));
    return;
  }
  const end = node.endedAt ?? last, told = node.rungs?.[0]?.at ?? end, undo = node.rungs?.find((each) => each.rung === "undo")?.at;
  box(node.startedAt, Math.min(told, end), { fill: "var(--soft)" }, summary(node.arguments));
  if (told < end) box(told, undo ?? end, { fill: "var(--warn)" }, node.rungs.some((each) => each.rung === "kill") ? "killed" : "");
  if (undo !== undefined) box(undo, end, { fill: "var(--bg)", stroke: "var(--soft)", "stroke-width": 1.5 });
  if (node.stillRunning) box(end, last + (last - node.startedAt) * 0.02, { fill: "none", stroke: "var(--warn)", "stroke-width": 1.5, "stroke-dasharray": "4 3" });
}

function describe(detail, node, tree) {
  const end = node.endedAt ?? tree.now, ran = node.startedAt ? `Ran ${seconds(end - node.startedAt)}. ` : "It never began. ";
  const climbed = (node.rungs ?? []).map((each) => `${each.rung} after ${seconds(each.at - node.startedAt)}`);
  detail.hidden = false;
  detail.replaceChildren(
    make("div.row", make("b", node.name), make("span.mono.soft.ell", summary(node.arguments)), make("span.grow"), make(inDoubt(node) ? "span.warn" : "span", callState(node)[2] || node.state)),
    make("p.soft", ran, climbed.length ? `Stop: ${climbed.join(", ")}.` : ""),
  );
}
