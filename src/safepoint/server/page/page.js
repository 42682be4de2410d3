// The page of a Safepoint server: talk to an agent, watch what it does, stop it, and go on.
//
// One place at the bottom changes with the run: write, choose a stop, stopping. What runs stays in sight meanwhile.

import { asPart, loggedIn, read, Refused, remove, send } from "./api.js";
import { ChatList } from "./chats.js";
import { Conversation } from "./conversation.js";
import { announce, button, download, icon, make } from "./dom.js";
import { Follower } from "./run.js";
import { liveCalls, receipt, StopChoice, Stopping } from "./stop.js";
import { asFile, timeline } from "./timeline.js";
import { RunPanel } from "./tree.js";
import { clock, ending, summary } from "./words.js";

const at = (id) => document.getElementById(id);
const message = at("message");
const RESUMABLE = new Set(["cancelled", "budget", "max_steps", "suspended", "lost"]);
const LOOK = 2000; // milliseconds between two looks at the list of chats
const PRESS = 500; // a second press counts only after so many milliseconds
const FILES = 6_000_000;

const state = {
  app: "",
  user: "",
  session: "",
  moves: 0, // who goes elsewhere while something loads is not brought back by it
  run: null, // the live run that this page follows
  tree: null, // of that run, or of the last one
  began: 0,
  known: "", // the newest run of the session that is shown here
  asked: 0, // when this page last asked for a stop
  files: [],
  sending: "steer", // what a message does while a run is live
  pending: [], // messages that wait to join
  offline: false,
};

const does = {
  stopCall: (path, name) => tried(stopCall)(path, name),
  answer: (parts) => begin(parts),
  retry: () => resume(),
};
const conversation = new Conversation(at("log"), does);
const panel = new RunPanel(at("panel"), does);
const chats = new ChatList(at("chats"), (id) => openSession(id));
const choice = new StopChoice(at("stop-place"), { preview: (asked) => preview(asked), stop: (asked) => tried(stop)(asked), close: () => closeChoice() });
let stopping = null;

const sessionPath = (id) => `apps/${state.app}/users/${state.user}/sessions${id ? `/${id}` : ""}`;

// -- what goes wrong --------------------------------------------------------------------------------------------------

function complain(error) {
  const place = at("problem");
  place.hidden = !error;
  place.textContent = error ? error.message : "";
}

function tried(act) {
  return async (...given) => {
    try {
      complain();
      return await act(...given);
    } catch (error) {
      complain(error);
    }
  };
}

// -- the bottom place -------------------------------------------------------------------------------------------------

function showPlace() {
  const live = state.run !== null, waits = conversation.questions.waiting;
  const isStopping = live && (state.asked > 0 || (state.tree?.asked ?? []).length > 0) && state.tree?.run?.runId === state.run.id;
  if (isStopping) {
    if (choice.isOpen) choice.close();
    stopping ??= new Stopping(at("stop-place"), () => tried(climb)());
    stopping.update(state.tree);
  } else if (stopping) {
    stopping = null;
    at("stop-place").replaceChildren();
  }
  at("composer").hidden = choice.isOpen || isStopping;
  at("stop-group").hidden = !live;
  at("way").hidden = !live;
  at("model").hidden = live;
  message.placeholder = live ? HINTS[state.sending] : waits ? "Type yes or no, or say what to do instead" : at("log").querySelector(".receipt") ? "Resume, or say what to do instead" : "Ask for something";
  at("send").disabled = !state.session || !(message.value.trim() || state.files.length);
  showChip(live, isStopping, waits);
}

const HINTS = { steer: "Steer it: joins before its next step", queue: "Queue it: runs after this answer", interrupt: "Interrupt it: stops now, then this" };

function showChip(live, isStopping, waits) {
  const place = at("status");
  let chip = null;
  if (state.offline) chip = ["warn", "Connection lost"];
  else if (isStopping) chip = ["", "Stopping"];
  else if (live) chip = ["live", `Working ${clock(Date.now() / 1000 - state.began)}`];
  else if (waits) chip = ["askc", "Waits for you"];
  else if (state.tree && ending(state.tree.run, state.user)) chip = [state.tree.run.outcome === "error" ? "warn" : "", ending(state.tree.run, state.user)];
  if (!chip) return place.replaceChildren();
  const [kind, words] = chip, sign = live && !state.offline ? icon("spin", "spin small-icon") : make("span.dot");
  const shown = place.firstElementChild;
  const drawn = `${kind} ${sign.tagName}`;
  if (shown?.dataset.drawn === drawn) shown.lastChild.textContent = words;
  else place.replaceChildren(make(`span.chip${kind ? `.${kind}` : ""}`, { "data-drawn": drawn }, sign, make("span", words)));
}

function showPending() {
  const place = at("pending");
  place.replaceChildren(...state.pending.map((each) => make("p.pending", icon("queue", "soft"), make("span.soft.no-phone", each.words), make("span.ell.grow", each.text))));
}

// -- a run ------------------------------------------------------------------------------------------------------------

const hears = {
  event: (event, connection) => {
    if (event.author === "user" && !event.partial) joined(event);
    conversation.show(event, connection);
    showPlace();
  },
  tree: (tree) => showTree(tree),
  connected: () => setOffline(false),
  lost: () => setOffline(true),
  over: (run) => over(run),
};

function setOffline(offline) {
  if (state.offline === offline) return;
  state.offline = offline;
  at("offline").hidden = !offline;
  if (offline) announce("The connection is lost. It works on.");
  showPlace();
}

function showTree(tree) {
  if (state.run && tree.run.runId !== state.run.id) return;
  state.tree = tree;
  const root = tree.nodes[0];
  if (root?.startedAt && state.run) state.began = Date.now() / 1000 - (tree.now - root.startedAt);
  conversation.update(tree);
  panel.update(tree, state.user);
  if (!at("timeline-view").hidden) drawTimeline();
  showPlace();
}

async function begin(parts, more = {}, local = null) {
  complain();
  conversation.questions.close();
  const run = follow(new Follower(null, hears));
  const body = { appName: state.app, userId: state.user, sessionId: state.session, newMessage: { role: "user", parts }, ...more };
  try {
    await run.begin(body);
    local?.classList.remove("local");
    refreshChats();
  } catch (error) {
    if (run.signal.aborted) return;
    run.leave();
    state.run = null;
    local?.remove();
    showPlace();
    const text = parts.map((part) => part.text ?? "").join("");
    if (text && !message.value) message.value = text;
    complain(error instanceof Refused ? error : new Error("The server did not answer. Your message is kept: send it again."));
  }
}

function follow(run) {
  state.run?.leave();
  state.run = run;
  state.tree = null;
  state.asked = 0;
  state.began = Date.now() / 1000;
  foldReceipt();
  panel.clear();
  showPlace();
  return run;
}

async function over(run) {
  if (state.run !== run) return;
  state.known = run.id;
  setOffline(false);
  state.pending = [];
  showPending();
  conversation.settled();
  if (choice.isOpen) choice.close();
  const move = state.moves;
  const tree = await read(`runs/${run.id}/tree`).catch(() => null);
  if (state.run !== run || move !== state.moves) return;
  state.run = null;
  state.asked = 0;
  if (tree) {
    showTree(tree);
    showReceipt(tree);
  }
  showPlace();
  refreshChats();
  if (document.activeElement === document.body) message.focus();
}

/** Another page, or another client, may have begun a run in this session, or a queued message has its turn. */
async function noticeRun(found) {
  const mine = found.find((chat) => chat.sessionId === state.session), last = mine?.lastRun, move = state.moves;
  const live = last && ["queued", "live"].includes(last.state);
  if (!last || state.run || (!live && (!state.known || last.runId === state.known))) return;
  if (!live) return openSession(state.session); // it has begun and ended meanwhile
  const stored = await read(sessionPath(state.session));
  if (state.run || move !== state.moves) return;
  conversation.questions.close();
  conversation.clear();
  for (const event of stored.events) conversation.show(event);
  follow(new Follower(last.runId, hears)).attach();
  conversation.toEnd();
}

// -- stopping ---------------------------------------------------------------------------------------------------------

const preview = (asked) => (state.run ? state.run.preview(asked) : Promise.reject(new Error("The run is over.")));

/** The Stop button: at once if nothing can be in doubt, else the choice. */
async function pressStop() {
  if (!state.run?.id) return;
  if (state.asked || (state.tree?.asked ?? []).length) return climb();
  await state.run.look();
  if (!state.run) return;
  if (state.tree && liveCalls(state.tree).length) openChoice();
  else await stop({ at: "now" });
}

function openChoice(node = null) {
  at("composer").hidden = true;
  choice.open(node);
  announce("Choose how to stop. It works on until you choose.");
}

function closeChoice() {
  choice.close();
  showPlace();
  message.focus();
}

async function stop(asked) {
  if (!state.run) return;
  const run = state.run;
  if (choice.isOpen) choice.close();
  if (!asked.node) state.asked = Date.now();
  showPlace();
  try {
    await run.stop(asked);
  } catch (error) {
    state.asked = 0;
    if (error.status !== 404) throw error;
  }
  run.look();
}

async function stopCall(path) {
  if (!state.run || !path) return;
  const isRoot = state.tree?.nodes[0]?.path === path;
  if (isRoot) return pressStop();
  const found = await preview({ at: "now", node: path });
  const harmless = found.calls.every((call) => ["runs_again", "continues", "never_starts", "finishes", "undone"].includes(call.fate));
  if (harmless) await stop({ at: "now", node: path });
  else openChoice(path);
}

/** A press while it stops raises the level: from a safe point to now, from now to force. */
async function climb() {
  if (!state.run || Date.now() - state.asked < PRESS) return;
  const current = state.tree?.asked ?? [], isNow = current.includes("now") || current.includes("force");
  state.asked = Date.now();
  await state.run.stop({ at: isNow ? "force" : "now" });
}

function showReceipt(tree) {
  if (tree.run.outcome !== "cancelled" && tree.run.state !== "suspended") return;
  foldReceipt();
  const element = receipt(tree, state.user, { resume, edit: editAndResume, rewind, timeline: openTimeline });
  const note = [...at("log").querySelectorAll(".note.stopped")].at(-1);
  if (note) note.hidden = true; // the receipt says it better
  conversation.add(element);
  showPlace();
}

/** The receipt becomes one line when the next message is sent. */
function foldReceipt() {
  for (const old of at("log").querySelectorAll(".receipt")) {
    for (const note of at("log").querySelectorAll(".note.stopped[hidden]")) note.remove();
    old.replaceWith(make("p.note.stopped", icon("stop", "fill"), make("span", old.querySelector("h2").textContent)));
  }
}

// -- going on ---------------------------------------------------------------------------------------------------------

const resume = tried(async (onUnknown) => {
  const last = await lastRun();
  if (!last) return;
  const started = await send(`runs/${last.runId}:resume`, onUnknown ? { onUnknown } : {});
  follow(new Follower(started.runId, hears)).attach();
  refreshChats();
});

async function lastRun() {
  if (state.tree) return state.tree.run;
  const found = await read(`apps/${state.app}/users/${state.user}/chats`);
  return found.find((chat) => chat.sessionId === state.session)?.lastRun;
}

function editAndResume() {
  const mine = [...at("log").querySelectorAll("p.mine:not(.file)")].at(-1);
  message.value = mine?.textContent ?? "";
  state.editing = true;
  resize();
  message.focus();
  showPlace();
}

async function rewind() {
  const last = await lastRun();
  if (!last) return;
  const effects = (state.tree?.nodes ?? []).filter((node) => node.kind === "tool" && node.startedAt && !["pure"].includes(node.effect) && node.state !== "compensated");
  const list = effects.length ? make("ul", effects.map((node) => make("li", make("b", node.name), ` ${summary(node.arguments)}`))) : make("p", "It had no effects.");
  const sure = await asked("Take back your last message?", [make("p", "Your message and all that followed it are removed from the chat. What tools did stays done:"), list], "Rewind");
  if (sure !== "yes") return;
  await tried(async () => {
    await send(`runs/${last.runId}:rewind`, {});
    await openSession(state.session);
  })();
}

/** A question of the page itself: "yes", "drop" where that is offered, or anything else for no. */
function asked(title, content, yes, drop = false) {
  const dialog = at("confirm");
  at("confirm-drop").hidden = !drop;
  at("confirm-title").textContent = title;
  at("confirm-text").replaceChildren(...content);
  at("confirm-yes").textContent = yes;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) => dialog.addEventListener("close", () => done(dialog.returnValue), { once: true }));
}

// -- writing ----------------------------------------------------------------------------------------------------------

async function sendMessage() {
  const text = message.value.trim(), files = state.files;
  if ((!text && !files.length) || !state.session) return;
  const isPaused = conversation.questions.waiting; // also while the end of that run is still being read
  if (!files.length && isPaused) {
    if (conversation.questions.takeWords(text)) return clearMessage();
    const meant = await asked("Send this as your answer?", [make("p", "It waits for an answer. You can answer with these words, or drop the question and say something new.")], "Send as my answer", true);
    if (meant === "yes") {
      conversation.questions.answerWith(text);
      return clearMessage();
    }
    if (meant !== "drop") return message.focus();
  }
  const parts = [...(text ? [{ text }] : []), ...(await Promise.all(files.map(asPart)))];
  const isLive = state.run !== null && !state.run.isOver && !isPaused;
  if (isLive) return state.run.id ? sendMeanwhile(parts, text) : undefined;
  clearMessage();
  if (state.editing) {
    state.editing = false;
    return tried(async () => {
      const last = await lastRun();
      const started = await send(`runs/${last.runId}:resume`, { newMessage: { role: "user", parts } });
      conversation.showMine(text, files.map((file) => file.name));
      follow(new Follower(started.runId, hears)).attach();
    })();
  }
  const local = conversation.showMine(text, files.map((file) => file.name));
  local.classList.add("local");
  await begin(parts, {}, local);
}

/** A message while it works: it joins, waits for its turn, or stops the run first. */
async function sendMeanwhile(parts, text) {
  const words = { steer: "Joins before its next step:", queue: "Runs after this answer:", interrupt: "Runs once this has stopped:" }[state.sending];
  state.pending.push({ words, text });
  clearMessage();
  showPending();
  if (state.sending === "steer") {
    const { outcome } = await state.run.steer(parts);
    if (outcome === "too_late") {
      takeBack(text);
      throw new Error("The run had ended before that could join it: send it again.");
    }
    if (outcome === "joined") joinedText(text);
    return;
  }
  const body = { appName: state.app, userId: state.user, sessionId: state.session, newMessage: { role: "user", parts } };
  const next = new Follower(null, { ...hears, event: () => {}, tree: () => {}, over: () => {}, connected: () => {} });
  await next.begin({ ...body, ifBusy: state.sending === "queue" ? "queue" : "interrupt" });
  next.leave(); // it is followed when its turn has come
}

function takeBack(text) {
  state.pending = state.pending.filter((each) => each.text !== text);
  showPending();
  if (!message.value) message.value = text;
}

function joined(event) {
  joinedText((event.content?.parts ?? []).map((part) => part.text ?? "").join(""));
}

function joinedText(text) {
  const before = state.pending.length;
  state.pending = state.pending.filter((each) => !text.includes(each.text));
  if (before !== state.pending.length) showPending();
}

function clearMessage() {
  message.value = "";
  state.files = [];
  showFiles();
  resize();
  showPlace();
}

function resize() {
  message.style.height = "auto";
  message.style.height = `${Math.min(200, Math.max(36, message.scrollHeight))}px`;
}

function addFiles(list) {
  const files = [...state.files, ...list], size = files.reduce((sum, file) => sum + file.size, 0);
  if (size > FILES) return complain(new Error("These files are too large together: 6 MB is the most."));
  state.files = files;
  showFiles();
  showPlace();
}

function showFiles() {
  at("attached").replaceChildren(
    ...state.files.map((file) => {
      const drop = button("quiet tiny icon", "×", () => ((state.files = state.files.filter((each) => each !== file)), showFiles(), showPlace()), { "aria-label": `Remove ${file.name}` });
      return make("span.chip", icon("clip", "small-icon"), file.name, drop);
    }),
  );
}

// -- sessions ---------------------------------------------------------------------------------------------------------

function welcome(info) {
  const tools = Object.values(info?.agents ?? {}).flatMap((agent) => agent.tools.flatMap((each) => each.functionDeclarations));
  const names = new Set(tools.map((tool) => tool.name));
  const tries = [
    ["nap", "Run something slow", "A tool waits for a minute. Stop it, and read what became of it.", "nap 60"],
    ["climb", "Climb step by step", "It writes as it goes, and can stop at a landing.", "climb 50"],
    ["ask", "Ask me first", "It needs your answer before it goes on.", "ask"],
    ["read_file", "Explain this folder", "It reads files and writes a long answer. Stop it mid-sentence: the words stay.", "Which files are in this folder, and what are they for?"],
    ["shell", "Run a command", "It asks before it runs anything. Say no and see what it does.", "Run `ls -la` and tell me what is there."],
    ["calculate", "Calculate", "A small tool that answers at once.", "What is (17 * 23) ** 2?"],
  ].filter(([tool]) => names.has(tool));
  const cards = tries.slice(0, 3).map(([, title, text, prompt]) => button("try", [make("b", title), make("span", text), make("span.go", "Start")], () => ((message.value = prompt), tried(sendMessage)())));
  const can = tools.slice(0, 8).map((tool) => tool.name).join(", ");
  return make(
    "div.col.hello",
    make("div", make("h2", "An agent you can stop"), make("p.lead", "Ask for something, and stop it whenever you like. What was done is kept. You are told what was done, what was not, and what is in doubt, and you can go on from there.")),
    cards.length ? make("div", make("p.small.soft", "Try one of these and press Stop in the middle"), make("div.tries", cards)) : null,
    make("dl.with", make("dt", "Agent"), make("dd", info?.rootAgentName ?? state.app), can ? [make("dt", "It can use"), make("dd", can)] : null),
  );
}

/** Show nothing but a session's name. What is typed has nowhere to go until the session is loaded. */
function turnTo(id) {
  state.run?.leave();
  Object.assign(state, { run: null, tree: null, known: "", asked: 0, pending: [], session: id, editing: false });
  if (choice.isOpen) choice.close();
  setOffline(false);
  showPending();
  closeTimeline();
  history.replaceState(null, "", `#${state.app}/${id}`);
  at("title").textContent = "New chat";
  at("title").dataset.session = id;
  conversation.questions.close();
  conversation.clear(make("div.col"));
  panel.clear();
  complain();
  message.disabled = at("send").disabled = true;
  at("app-frame").classList.remove("showtree", "showchats");
  showPlace();
  return ++state.moves;
}

const openSession = async (id) => {
  const move = turnTo(id);
  if (!id) return;
  try {
    const [found, list] = await Promise.all([read(sessionPath(id)), read(`apps/${state.app}/users/${state.user}/chats`)]);
    if (move !== state.moves) return;
    const chat = list.find((each) => each.sessionId === id), last = chat?.lastRun;
    const live = last && ["queued", "live"].includes(last.state);
    await showStored(found, last, live, move);
    if (move !== state.moves) return;
    chats.show(list, id, state.user);
    showTitle(chat);
    state.known = last?.runId ?? "none";
    if (live) follow(new Follower(last.runId, hears)).attach();
    message.disabled = false;
    showPlace();
    if (!conversation.questions.waiting) message.focus();
  } catch (error) {
    if (move === state.moves) complain(error);
  }
};

async function showStored(found, last, live, move) {
  if (!found.events.length && !live) {
    conversation.clear(welcome(await read(`apps/${state.app}/app-info`).catch(() => null)));
    return;
  }
  for (const event of found.events) conversation.show(event);
  const asking = found.events.at(-1)?.customMetadata?.safepointQuestions;
  if (!asking || live) conversation.questions.close();
  conversation.toEnd();
  if (!last || live) return;
  const tree = await read(`runs/${last.runId}/tree`).catch(() => null);
  if (!tree || move !== state.moves) return;
  showTree(tree);
  if (RESUMABLE.has(last.outcome ?? last.state)) showReceipt(tree);
  conversation.toEnd();
}

function showTitle(chat) {
  at("title").textContent = chat?.title || "New chat";
  document.title = chat?.title ? `${chat.title} · Safepoint` : "Safepoint";
}

async function refreshChats() {
  if (!state.app) return;
  const app = state.app, found = await read(`apps/${app}/users/${state.user}/chats`);
  if (app !== state.app) return;
  chats.show(found, state.session, state.user);
  const current = found.find((each) => each.sessionId === state.session);
  if (current) showTitle(current);
  noticeRun(found);
}

async function newSession() {
  const before = state.session, move = turnTo("");
  try {
    const made = await send(sessionPath(), {});
    if (move === state.moves) await openSession(made.id);
    refreshChats();
  } catch (error) {
    if (move === state.moves) await openSession(before);
    throw error;
  }
}

async function deleteSession() {
  const id = state.session;
  if (!id || (await asked("Delete this chat?", [make("p", "Its messages are removed for good. A run in it is stopped first.")], "Delete")) !== "yes") return;
  await tried(async () => {
    turnTo("");
    await remove(sessionPath(id));
    await openFirst();
  })();
}

async function openFirst(move = state.moves) {
  const found = await read(`apps/${state.app}/users/${state.user}/chats`);
  if (move !== state.moves) return;
  chats.show(found, "", state.user);
  if (found.length) await openSession(found[0].sessionId);
  else await newSession();
}

function choose(name) {
  state.user = name;
  at("user").value = name;
  localStorage.setItem("user", name);
}

async function openApp(name, id) {
  state.app = name;
  at("model").textContent = name;
  const move = turnTo("");
  localStorage.setItem("app", name);
  if (id) await Promise.all([openSession(id), refreshChats()]);
  else await openFirst(move);
}

// -- the timeline -----------------------------------------------------------------------------------------------------

function openTimeline() {
  if (!state.tree) return;
  at("timeline-view").hidden = false;
  at("conversation-view").hidden = true;
  at("app-frame").classList.add("drawn");
  for (const id of ["save-timeline", "close-timeline"]) at(id).hidden = false;
  at("open-timeline").hidden = true;
  drawTimeline();
  at("close-timeline").focus();
}

function drawTimeline() {
  at("timeline-view").replaceChildren(...timeline(state.tree, state.user, at("timeline-view").clientWidth - 48));
}

function closeTimeline() {
  at("timeline-view").hidden = true;
  at("conversation-view").hidden = false;
  at("app-frame").classList.remove("drawn");
  for (const id of ["save-timeline", "close-timeline"]) at(id).hidden = true;
  at("open-timeline").hidden = false;
}

// -- what people press ------------------------------------------------------------------------------------------------

at("composer").onsubmit = (event) => {
  event.preventDefault();
  tried(sendMessage)();
};
message.oninput = () => {
  resize();
  showPlace();
};
message.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  at("composer").requestSubmit();
};
message.onpaste = (event) => {
  if (event.clipboardData.files.length) addFiles(event.clipboardData.files);
};
at("attach").onclick = () => at("file").click();
at("file").onchange = () => {
  addFiles(at("file").files);
  at("file").value = "";
};
for (const way of at("way").querySelectorAll("button")) {
  way.onclick = () => {
    state.sending = way.value;
    for (const each of at("way").querySelectorAll("button")) each.setAttribute("aria-pressed", String(each === way));
    showPlace();
    message.focus();
  };
}
at("stop").onclick = tried(pressStop);
at("stop-ways").onclick = () => state.run && openChoice();
at("new-session").onclick = tried(newSession);
at("delete-chat").onclick = () => deleteSession();
at("copy-details").onclick = tried(async () => {
  await navigator.clipboard.writeText(`session ${state.session}\nrun ${state.tree?.run?.runId ?? state.run?.id ?? "none"}`);
  announce("Copied");
});
at("open-timeline").onclick = openTimeline;
at("close-timeline").onclick = closeTimeline;
at("save-timeline").onclick = () => download("run.svg", asFile(state.tree, state.user), "image/svg+xml");
at("show-chats").onclick = () => at("app-frame").classList.toggle("showchats");
at("strip").onclick = () => at("app-frame").classList.add("showtree");
at("hide-panel").onclick = () => (at("app-frame").classList.contains("showtree") ? at("app-frame").classList.remove("showtree") : at("app-frame").classList.add("wide"));
at("show-panel").onclick = () => at("app-frame").classList.toggle("wide");
at("app").onchange = tried(() => openApp(at("app").value));
at("user").onchange = tried(() => {
  choose(at("user").value.trim() || "user");
  return openApp(state.app);
});
at("theme").onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
};
for (const dialog of document.querySelectorAll("dialog")) {
  for (const each of dialog.querySelectorAll("button[value]")) each.onclick = () => dialog.close(each.value);
}

const inField = () => /^(TEXTAREA|INPUT|SELECT)$/.test(document.activeElement?.tagName ?? "");

document.onkeydown = (event) => {
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "Escape") return pressEscape(event);
  if (event.key === "." && (event.ctrlKey || event.metaKey) && state.run) return tried(stop)({ at: "after_tools" });
  if (event.altKey && event.key.toLowerCase() === "q") return conversation.questions.focus();
  if (event.ctrlKey || event.metaKey || event.altKey || inField()) return;
  pressLetter(event);
};

function pressEscape(event) {
  event.preventDefault();
  if (!at("timeline-view").hidden) return closeTimeline();
  if (at("app-frame").classList.contains("showtree") || at("app-frame").classList.contains("showchats")) return at("app-frame").classList.remove("showtree", "showchats");
  if (event.shiftKey && state.run) return tried(stop)({ at: "now" });
  if (choice.isOpen) return closeChoice();
  if (state.run) tried(pressStop)();
}

function pressLetter(event) {
  const letter = event.key.toLowerCase(), open = at("log").querySelector(".question:not(.over)");
  const press = (selector) => document.querySelector(selector)?.click();
  if (open && ["y", "x"].includes(letter)) {
    event.preventDefault();
    return open.querySelectorAll(".answers > button")[letter === "y" ? 0 : 1]?.click();
  }
  if (letter === "r") press(".receipt [data-key=r]");
  else if (letter === "n") press("#new-session");
  else if (letter === "t") openTimeline();
  else if (letter === "[") at("show-chats").click();
  else if (letter === "]") at("show-panel").click();
  else if (letter === "s" && document.activeElement?.dataset?.path) document.activeElement.click();
  else if (event.key === "?") at("keys").showModal();
}

setInterval(() => {
  if (document.visibilityState === "visible" && !at("login").open) refreshChats().catch(() => {});
}, LOOK);
setInterval(() => state.run && showPlace(), 1000);
addEventListener("resize", () => !at("timeline-view").hidden && drawTimeline());

async function start() {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  const mine = document.body.dataset.user;
  loggedIn.hear = choose;
  choose(mine || localStorage.getItem("user") || "user");
  at("user-row").hidden = Boolean(mine);
  const apps = await read("list-apps");
  if (document.body.dataset.user === "" && at("login-problem").dataset.user) at("user-row").hidden = true;
  at("app").replaceChildren(...apps.map((name) => make("option", { value: name }, name)));
  const [wanted, id] = decodeURIComponent(location.hash.slice(1)).split("/");
  const name = [wanted, localStorage.getItem("app"), apps[0]].find((each) => apps.includes(each));
  if (!name) return complain(new Error("This server serves no app."));
  at("app").value = name;
  await openApp(name, name === wanted ? id : undefined);
}

start().catch(complain);
