// What the page calls things: why a run ended, how a call stands, how far a stop has come, and times.

const BY_SOURCE = {
  user: "Stopped by you",
  caller: "Stopped by the program",
  policy: "Stopped by a rule",
  budget: "Stopped at its limit",
  deadline: "Stopped: time was up",
  parent: "Stopped with the agent above it",
  preempt: "Stopped for a newer message",
  disconnect: "Stopped: the connection was lost",
  shutdown: "Stopped: the server was shut down",
};
const BY_OUTCOME = {
  end_turn: "",
  interrupted: "Waits for you",
  max_steps: "Stopped: too many steps, not finished",
  max_tokens: "The answer was cut off by the model's limit",
  refused: "The model declined to answer",
  budget: "Stopped at its limit",
  error: "Failed",
  suspended: "Stopped: the server was shut down (can resume)",
  lost: "Failed: the server lost it",
};

/** Why a run ended, in words of a user; empty for an answer. `me`: the name of the one who reads. */
export function ending(run, me) {
  if (run.state === "paused") return BY_OUTCOME.interrupted;
  if (run.state === "suspended") return BY_OUTCOME.suspended;
  if (run.outcome !== "cancelled") return BY_OUTCOME[run.outcome] ?? "";
  const { source, by, text } = run.reason ?? {};
  if (source === "user" && by && me && by !== me && by !== "local") return `Stopped by ${by}`;
  const words = BY_SOURCE[source] ?? "Stopped";
  return ["policy", "budget"].includes(source) && text ? `${words}: ${text}` : words;
}

const MILD = new Set(["pure", "idempotent"]);
export const isMild = (node) => MILD.has(node.effect);
export const inDoubt = (node) => node.kind === "tool" && node.state === "cut" && (node.stillRunning || !isMild(node));

/** How a call stands: its icon, its tone, its word. */
export function callState(node, over = false) {
  switch (node.state) {
    case "queued": return ["queue", "soft", "Queued"];
    case "running": return node.rungs?.length ? [rungIcon(node), "", rungWord(node)] : ["spin", "ok spin", ""];
    case "waiting": return over ? ["never", "soft", "Not answered"] : ["ask", "askc", "Asks you"];
    case "finished": return ["check", "faint", ""];
    case "finished_late": return ["check", "faint", "Finished later"];
    case "failed": return ["cross", "bad", /denied/.test(node.error ?? "") ? "You said no" : "Failed"];
    case "cut":
      if (node.stillRunning) return ["ghost", "warn", "In doubt, still running"];
      return isMild(node) ? ["cut", "soft", "Cut; will run again"] : ["cut", "warn", "In doubt"];
    case "stopped": return ["pause", "soft", "Stopped at a safe point, can go on"];
    case "compensated": return ["undo", "", "Undone"];
    case "not_started": return ["never", "soft", "Not started"];
    default: return ["check", "faint", ""];
  }
}

const RUNGS = {
  shielded: "in a part that must not be cut",
  finish: "finishing",
  cancel: "cleaning up",
  flag: "told, not reacting yet",
  ask: "its agent is stopping",
  term: "asked to quit",
  kill: "killed",
  undo: "undoing",
  abandon: "let go",
};
export const rungName = (rung) => RUNGS[rung] ?? rung;
export const rungWord = (node) => rungName(node.rungs.at(-1).rung);
const rungIcon = (node) => ({ undo: "undo", abandon: "ghost" })[node.rungs.at(-1).rung] ?? "spin";

/** What a stop would do to a call: icon, tone, and words, of which the second are the ones to look at. */
export function fate(call) {
  const bound = call.seconds ? ` (up to ${seconds(call.seconds)})` : "";
  switch (call.fate) {
    case "finishes": return ["check", "", `finishes${call.seconds ? bound : ""}`, ""];
    case "continues": return ["pause", "", "stops, can go on later", ""];
    case "runs_again": return ["cut", "soft", "cut, and runs again on resume", ""];
    case "undone": return ["undo", "", `cut and undone${bound}`, ""];
    case "in_doubt": return ["cut", "warn", "cut, ", "left in doubt"];
    case "may_not_react": return ["ghost", "warn", "", "may not react, then it is let go"];
    case "never_starts": return ["never", "", "never starts", ""];
    default: return ["cut", "", call.fate, ""];
  }
}

export const AT_WORDS = { now: "now", force: "at once, by force", after_tools: "after this step", after_tool: "after this call", after_model: "after this answer" };

export const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
/** Arguments in one line: a single one without its name. */
export function summary(args) {
  const all = Object.entries(args ?? {});
  if (all.length === 1) return plain(all[0][1]);
  return all.map(([name, value]) => `${name}: ${plain(value)}`).join(", ");
}

export function seconds(value) {
  if (value < 0.05) return "0.0 s";
  if (value < 10) return `${value.toFixed(1)} s`;
  return value < 60 ? `${Math.round(value)} s` : clock(value);
}

export function clock(value) {
  const whole = Math.max(0, Math.floor(value));
  const pad = (number) => String(number).padStart(2, "0");
  const minutes = Math.floor(whole / 60) % 60, hours = Math.floor(whole / 3600);
  return hours ? `${hours}:${pad(minutes)}:${pad(whole % 60)}` : `${minutes}:${pad(whole % 60)}`;
}

export function tokens(count) {
  return count < 1000 ? String(count) : `${(count / 1000).toFixed(1)}k`;
}

/** When, as short as it is clear: a time today, a day before. */
export function when(at) {
  const then = new Date(at * 1000), now = new Date();
  if (now - then < 60_000) return "now";
  if (then.toDateString() === now.toDateString()) return timeOf(at);
  return now - then < 7 * 86400_000
    ? then.toLocaleDateString([], { weekday: "short" })
    : then.toLocaleDateString([], { day: "numeric", month: "short" });
}

export const timeOf = (at) => new Date(at * 1000).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });

/** The heading under which a chat is listed. */
export function dayOf(at) {
  const start = new Date().setHours(0, 0, 0, 0) / 1000;
  if (at >= start) return "Today";
  if (at >= start - 86400) return "Yesterday";
  return at >= start - 6 * 86400 ? "Last week" : "Earlier";
}
