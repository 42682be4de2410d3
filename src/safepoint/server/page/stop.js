// The stop: a choice with a preview of what it would cut, how far it has come, and the receipt of what came of it.

import { announce, button, copy, icon, key, make } from "./dom.js";
import { AT_WORDS, callState, ending, fate, inDoubt, isMild, rungName, seconds, summary, timeOf, tokens } from "./words.js";

const WAYS = [
  ["step", "After this step", "What was begun is completed. Cuts nothing."],
  ["now", "Now", "Cuts what runs."],
  ["one", "Only one tool", "The rest goes on; the model is told."],
];
const REFRESH = 700;

/** The calls of a tree that run, or wait for their turn. */
export const liveCalls = (tree) => tree.nodes.filter((node) => node.kind === "tool" && ["running", "queued"].includes(node.state));

/** What the choice does: `preview(request)`, `stop(request)`, `close()`. */
export class StopChoice {
  constructor(place, does) {
    this.place = place;
    this.does = does;
    this.timer = null;
  }

  get isOpen() {
    return this.timer !== null;
  }

  /** `node`: the call that was meant; then only that is chosen. */
  open(node = null) {
    this.way = node ? "one" : "now";
    this.node = node;
    this.nothingMore = make("input", { type: "checkbox", onchange: () => this.refresh() });
    this.limit = make("select.mini", { "aria-label": "At most" }, make("option", { value: "30" }, "30 s, then now"), make("option", { value: "" }, "no limit"));
    this.preview = make("div.prev", { "aria-live": "polite" });
    this.do = button("stop", "", () => this.act());
    const options = WAYS.map(([way, title, text]) => this.option(way, title, text));
    const form = make("form", { onsubmit: (event) => (event.preventDefault(), this.act()) });
    form.append(
      make("div.two", make("fieldset.opts", make("legend.sr", "How to stop"), options), this.preview),
      make("footer", make("span.note.grow.no-phone", "It works on until you choose."), button("quiet", ["Keep going", key("Esc")], () => this.does.close()), this.do),
    );
    this.place.replaceChildren(make("div.choice", { role: "dialog", "aria-label": "Stop" }, form));
    this.timer = setInterval(() => this.refresh(), REFRESH);
    this.place.querySelector("input:checked").focus();
    this.refresh();
  }

  option(way, title, text) {
    const radio = make("input", { type: "radio", name: "how", value: way, checked: way === this.way });
    radio.onchange = () => {
      this.way = way;
      this.refresh();
    };
    radio.onkeydown = (event) => {
      if (event.key === "Enter") (event.preventDefault(), this.act());
    };
    const hint = make("small", text);
    if (way === "now") this.hint = hint;
    return make("label.opt", radio, make("b", title), hint);
  }

  close() {
    clearInterval(this.timer);
    this.timer = null;
    this.place.replaceChildren();
  }

  request() {
    if (this.way === "now") return { at: "now" };
    if (this.way === "one") return { at: "now", node: this.node };
    const at = this.nothingMore.checked ? ["after_tool", "after_tools"] : "after_tools";
    return { at, withinSeconds: this.limit.value ? Number(this.limit.value) : undefined };
  }

  async refresh() {
    const way = this.way, { at } = way === "one" ? { at: "now" } : this.request();
    const [found, now] = await Promise.all([this.does.preview({ at }), way === "step" ? this.does.preview({ at: "now" }) : null]).catch(() => [null]);
    if (!found || !this.isOpen || way !== this.way) return;
    const bound = (now ?? found).seconds;
    this.hint.textContent = bound === undefined ? "Cuts what runs." : `Cuts what runs. At most ${seconds(bound)}.`;
    this.show(found.calls);
  }

  show(calls) {
    const top = calls.filter((call) => !calls.some((each) => call.path.startsWith(`${each.path}/`)));
    if (this.way === "one" && !calls.some((call) => call.path === this.node)) this.node = top[0]?.path ?? null;
    const title = { step: "If you stop after this step", now: "If you stop now", one: "Stop only" }[this.way];
    const rows = (this.way === "one" ? top : calls).map((call) => this.row(call));
    const list = rows.length ? make("ul.fate", rows) : make("p.note", "Nothing runs that could be cut.");
    const more = this.way === "step" && make("p.row.small.limits", make("label.inline", this.nothingMore, "Start nothing more"), make("span.grow"), make("label.inline.soft", "at most ", this.limit));
    const before = document.activeElement?.value;
    this.preview.replaceChildren(make("h2", title), list, more || "");
    if (this.way === "one" && this.preview.querySelector(`input[value="${CSS.escape(before ?? "")}"]`)) this.preview.querySelector(`input[value="${CSS.escape(before)}"]`).focus();
    const name = calls.find((call) => call.path === this.node)?.name;
    const label = { step: "Stop after this step", now: "Stop now", one: name ? `Stop ${name}` : "Stop" }[this.way];
    this.do.replaceChildren(icon("stop", "fill"), make("span", label), key("Enter"));
    this.do.disabled = this.way === "one" && !this.node;
  }

  row(call) {
    let [sign, tone, words, loud] = fate(call);
    if (this.way === "step" && call.fate === "finishes" && call.seconds === undefined && call.isQueued) words = "still starts";
    if (this.way === "step" && call.effect === "irreversible" && call.isQueued) loud = " and cannot be undone";
    const shown = make("span", words, loud && make(`span.${tone || "warn"}`, loud));
    if (this.way !== "one") return make("li", icon(sign, tone), make("b", call.name), shown);
    const radio = make("input", { type: "radio", name: "which", value: call.path, checked: call.path === this.node, "aria-label": `Stop ${call.name}` });
    radio.onchange = () => {
      this.node = call.path;
      this.refresh();
    };
    return make("li", radio, make("b", call.name), shown);
  }

  act() {
    if (this.do.disabled) return;
    const request = this.request();
    this.does.stop(request);
  }
}

/** How far a stop has come: what it waits for, on which rung, for how long at most. */
export class Stopping {
  constructor(place, force) {
    this.place = place;
    this.bar = make("i");
    this.title = make("span.soft.grow.ell");
    this.holds = make("ul.holds");
    this.foot = make("footer");
    this.force = button("force", ["Force", key("Esc")], force);
    const bar = make("div.bar", { role: "progressbar", "aria-label": "Time used", "aria-valuemin": 0, "aria-valuemax": 100 }, this.bar);
    this.element = make("section.stopping", { "aria-label": "Stopping" }, make("header", icon("spin", "spin"), make("h2", "Stopping"), this.title, this.force), bar, this.holds, this.foot);
    this.since = null;
  }

  update(tree) {
    if (!this.element.isConnected) this.place.replaceChildren(this.element);
    const ask = tree.asks.at(-1);
    this.since ??= ask?.time ?? tree.now;
    const at = tree.asked ?? [], waits = !at.includes("now") && !at.includes("force");
    const holding = tree.holding, left = Math.max(0, ...holding.map((each) => each.secondsLeft ?? 0));
    const used = tree.now - this.since, share = Math.round(Math.min(100, (100 * used) / Math.max(0.1, used + left)));
    this.bar.style.width = waits && !left ? "0" : `${share}%`;
    this.bar.parentElement.setAttribute("aria-valuenow", String(share));
    this.element.querySelector("h2").textContent = waits ? `Stopping ${AT_WORDS[at[0]] ?? "at the next safe point"}` : "Stopping";
    const bound = left ? `, done in ${seconds(left)} at the latest` : "";
    this.title.textContent = holding.length ? `waits for ${holding.length === 1 ? holding[0].name : `${holding.length} calls`}${waits && left ? `, at most ${seconds(left)} more` : bound}` : "";
    this.holds.replaceChildren(...holding.map((each) => this.row(each, tree)));
    this.foot.textContent = waits ? "Esc again stops now and cuts what runs." : "Force, or Esc again, waits for nothing: what is being undone or cleaned up stays in doubt.";
    this.force.firstChild.textContent = waits ? "Stop now" : "Force";
  }

  row(each, tree) {
    const node = tree.nodes.find((found) => found.path === each.path);
    const rungs = (node?.rungs ?? []).map((reached) => reached.rung);
    const steps = ["told", ...rungs.map(rungName)];
    if (!rungs.length && each.rung === undefined) steps.splice(0, 1, "still working");
    const way = make("ol.rungs", steps.map((step, at) => make("li", { "aria-current": at === steps.length - 1 ? "step" : null }, step)));
    const left = each.secondsLeft === undefined ? seconds(each.seconds) : `${seconds(each.secondsLeft)} left`;
    return make("li", icon("spin", "spin"), make("b", node?.name ?? each.name), way, make("span.num", left));
  }
}

const COUNTS = [
  ["finished", (node) => ["finished", "finished_late"].includes(node.state)],
  ["can go on", (node) => node.state === "stopped"],
  ["undone", (node) => node.state === "compensated"],
  ["in doubt", inDoubt],
  ["will run again", (node) => node.state === "cut" && isMild(node) && !node.stillRunning],
  ["not started", (node) => node.state === "not_started"],
  ["failed", (node) => node.state === "failed"],
];

/** The calls that are not simply finished, the doubtful ones first. */
function remarkable(nodes) {
  const rank = (node) => (inDoubt(node) ? 0 : 1);
  return nodes.filter((node) => !["finished", "running"].includes(node.state)).sort((a, b) => rank(a) - rank(b));
}

const FATES = {
  cut: (node) => (node.stillRunning ? ["In doubt, still running.", "It did not react and was let go."] : isMild(node) ? ["Cut.", "It runs again on resume."] : ["In doubt.", node.startedAt && node.endedAt ? `It was cut after ${seconds(node.endedAt - node.startedAt)}; its output so far is kept.` : "It was cut; nobody knows what it did."]),
  compensated: () => ["Undone.", "What it had begun was taken back."],
  stopped: () => ["Stopped at a safe point.", "Goes on where it was."],
  not_started: () => ["Not started.", "Nothing happened."],
  failed: (node) => ["Failed.", node.error ?? ""],
  finished_late: () => ["Finished later.", "Its result is told on resume."],
  waiting: () => ["Not answered.", "It asks again on resume."],
};

/** What came of a stop. `does`: `resume(onUnknown)`, `edit()`, `rewind()`, `timeline()`. */
export function receipt(tree, me, does) {
  const calls = tree.nodes.filter((node) => node.kind === "tool"), root = tree.nodes.find((node) => node.kind === "agent");
  const doubtful = calls.filter(inDoubt), ask = tree.asks.find((each) => each.path === root?.path) ?? tree.asks[0];
  const title = ending(tree.run, me) || "Stopped", usage = tree.usage ?? tree.run.usage;
  const end = root?.endedAt ?? tree.run.endedAt, took = ask?.time && end ? Math.max(0, end - ask.time) : null;
  const where = ask?.at?.length && !ask.at.includes("now") && !ask.at.includes("force") ? AT_WORDS[ask.at[0]] ?? "at a safe point" : "at once";
  const counts = COUNTS.map(([name, fits]) => [name, calls.filter(fits).length]).filter(([, count]) => count);
  const sums = make("dl.sums", counts.map(([name, count]) => make(`div${name === "in doubt" ? ".warn" : ""}`, make("dt", name), make("dd", String(count)))));
  if (usage) sums.append(make("div", make("dt", usage.costUsd ? `about $${usage.costUsd.toFixed(2)}` : "used"), make("dd", `${usage.estimated ? "≈ " : ""}${tokens((usage.inputTokens ?? 0) + (usage.outputTokens ?? 0))} `, make("span.unit", "tokens"))));
  const rows = remarkable(calls).map((node) => {
    const [sign] = callState(node, true), [loud, rest] = (FATES[node.state] ?? (() => [node.state, ""]))(node);
    const tone = inDoubt(node) ? "warn" : "";
    return make("li", icon(sign === "ghost" ? "ghost" : sign, tone), make("b", node.name), make("span", make(tone ? `span.${tone}` : "span", loud), " ", make("span.soft", rest)));
  });
  const copies = button("quiet icon no-phone", "", () => copy(asText(title, tree, calls), copies), { "aria-label": "Copy the receipt" });
  copies.append(icon("copy"));
  const unknown = make("select.mini", make("option", { value: "tell" }, "tell the model"), make("option", { value: "ask" }, "ask me first"), make("option", { value: "rerun" }, "run it again"));
  const again = willRun(calls), risky = again.some((node) => !isMild(node)) && doubtful.length > 0;
  const resume = button(risky ? "" : "main", [risky ? "Resume…" : "Resume", key("R")], () => does.resume(doubtful.length ? unknown.value : undefined), { "data-key": "r" });
  const element = make(
    "section.receipt",
    { "aria-label": "Receipt of the stop", tabindex: -1 },
    make("header", icon("stop", doubtful.length ? "fill warn" : "fill"), make("h2", title), make("span.soft.small.ell.grow", took === null ? "" : `${where}, in ${seconds(took)}`), make("span.soft.small.num", end ? timeOf(end) : "")),
    sums.childElementCount ? sums : null,
    rows.length ? make("div.facts", make("ul.fate", rows)) : null,
    make("div.acts", resume, button("", "Edit and resume", () => does.edit()), button("", "Rewind…", () => does.rewind()), make("span.grow"), button("quiet no-phone", [icon("lanes"), "Timeline"], () => does.timeline()), copies),
    make("div.onresume.note", make("p", resumeWords(calls, again, doubtful)), doubtful.length ? make("label.inline", "In doubt: ", unknown) : null),
  );
  announce(`${title}. ${counts.map(([name, count]) => `${count} ${name}`).join(", ")}`);
  return element;
}

const willRun = (calls) => calls.filter((node) => ["not_started", "compensated"].includes(node.state) || (node.state === "cut" && isMild(node)));

function resumeWords(calls, again, doubtful) {
  const kept = calls.filter((node) => ["finished", "failed", "finished_late"].includes(node.state)).length;
  const words = [];
  if (kept) words.push(`keeps ${kept} result${kept > 1 ? "s" : ""}`);
  if (calls.some((node) => node.state === "stopped")) words.push("lets go on what was stopped at a safe point");
  if (again.length) words.push(`runs ${again.map((node) => node.name + (node.effect === "irreversible" ? " (cannot be undone)" : "")).join(" and ")}`);
  if (doubtful.length) words.push("does not repeat what is in doubt unless you say so");
  return words.length ? `Resume ${words.join(", ")}.` : "Resume makes the cut answer anew.";
}

function asText(title, tree, calls) {
  const lines = calls.map((node) => `${node.name} ${summary(node.arguments)}: ${node.state}${node.stillRunning ? ", still running" : ""}`);
  return [`${title} (${tree.run.runId})`, ...lines].join("\n");
}
