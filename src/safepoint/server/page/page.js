// The page of a Safepoint server: talk to an agent, watch what it does, and stop it.
//
// What is shown comes from events, by their ids: a piece of text, its whole message and a replay of both are the same
// element. So reading a stored session, following a live run and coming back to one are one thing. A run belongs to the
// server, not to the page: it is started detached, and a page that is loaded again finds it.

const at = (id) => document.getElementById(id);
const log = at("log"), composer = at("composer"), message = at("message");
const OVER = new Set(["ended", "paused", "suspended"]);

let app = "", user = "", session = "";
let moves = 0; // who goes elsewhere while something loads is not brought back by it
let loggingIn = null; // one dialog for all requests that wait for it
let run = null; // what this page follows: {id, seq, stop, asked}
let shown = new Map(); // elements by event id
let calls = new Map(); // tool cards by call id

// -- the server -------------------------------------------------------------------------------------------------------

class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

async function ask(method, path, body, options = {}) {
  for (;;) {
    const answer = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "content-type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
      ...options,
    });
    if (answer.ok) return answer;
    const detail = await answer.text();
    if (answer.status !== 401) throw new Refused(answer.status, explained(detail));
    loggingIn ??= logIn().finally(() => (loggingIn = null));
    await loggingIn;
  }
}

const read = async (path) => (await ask("GET", path)).json();
const send = async (path, body) => (await ask("POST", path, body)).json();

function explained(detail) {
  try {
    const found = JSON.parse(detail).detail;
    return typeof found === "string" ? found : found.map((each) => each.msg).join("; ");
  } catch {
    return detail;
  }
}

function logIn() {
  const dialog = at("login");
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => {
    at("login-form").onsubmit = async (event) => {
      event.preventDefault();
      const answer = await fetch("login", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ key: at("key").value }),
      });
      at("key").value = "";
      if (!answer.ok) {
        at("login-problem").textContent = explained(await answer.text());
        return;
      }
      const who = await answer.json();
      if (who.user) choose(who.user);
      at("login-problem").textContent = "";
      dialog.close();
      done();
    };
  });
}

const sessionPath = (id) => `apps/${app}/users/${user}/sessions${id ? `/${id}` : ""}`;

// -- making elements --------------------------------------------------------------------------------------------------

function make(tag, kind, text) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = text;
  return element;
}

const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));
const listed = (args) => Object.entries(args ?? {}).map(([name, value]) => `${name}: ${plain(value)}`).join("\n");
const short = (id) => (/^[0-9a-f]{8}-[0-9a-f-]{27}$/.test(id) ? id.slice(0, 8) : id);

function since(seconds) {
  const passed = Date.now() / 1000 - seconds;
  if (!seconds || passed < 60) return "now";
  if (passed < 3600) return `${Math.floor(passed / 60)} min`;
  return passed < 86400 ? `${Math.floor(passed / 3600)} h` : `${Math.floor(passed / 86400)} d`;
}

function stateOf(text) {
  return make("span", `state ${text}`, text.replaceAll("_", " "));
}

function setState(card, text) {
  card.querySelector(".state").replaceWith(stateOf(text));
}

function complain(error) {
  at("problem").textContent = error ? error.message : "";
  at("problem").hidden = !error;
}

// -- events -----------------------------------------------------------------------------------------------------------

function keepAtEnd(change) {
  const near = log.scrollHeight - log.scrollTop - log.clientHeight < 80;
  change();
  if (near) log.scrollTop = log.scrollHeight;
}

function show(event) {
  const told = event.partial ? event.content.parts.filter((part) => part.functionResponse) : [];
  if (told.length) return keepAtEnd(() => told.forEach((part) => showOutput(part.functionResponse)));
  keepAtEnd(() => {
    log.querySelector(".empty")?.remove();
    let element = shown.get(event.id);
    if (!element) {
      element = make("div");
      shown.set(event.id, element);
      log.append(element);
    }
    element.className = `said ${event.author === "user" ? "user" : "agent"}`;
    if (event.partial) showWords(element, event);
    else showWhole(element, event);
  });
}

function showWords(element, event) {
  // The first piece that a connection brings holds everything so far.
  if (run && element.connection !== run.connection) element.replaceChildren();
  element.connection = run?.connection;
  element.classList.add("under-way");
  for (const part of event.content.parts) {
    const kind = part.thought ? "thought" : "words";
    let last = element.lastElementChild;
    if (!last?.classList.contains(kind)) {
      last = part.thought ? thoughtOf("") : make("div", "words", "");
      element.append(last);
    }
    (part.thought ? last.lastElementChild : last).append(part.text);
  }
}

function thoughtOf(text) {
  const found = make("details", "thought");
  found.append(make("summary", "", "Thinking"), make("div", "", text));
  return found;
}

function showWhole(element, event) {
  element.replaceChildren();
  for (const part of event.content?.parts ?? []) {
    if (part.text !== undefined) element.append(part.thought ? thoughtOf(part.text) : make("div", "words", part.text));
    else if (part.functionCall) element.append(cardOf(part.functionCall, event));
    else if (part.functionResponse) showResult(part.functionResponse);
    else if (part.inlineData || part.fileData) element.append(make("div", "words", "📎 " + (part.fileData?.fileUri ?? part.inlineData.mimeType)));
  }
  for (const entry of event.customMetadata?.safepointLedger ?? []) {
    const card = calls.get(entry.callId);
    if (card) setState(card, entry.stillRunning ? `${entry.state} (still running)` : entry.state);
  }
  const questions = event.customMetadata?.safepointQuestions ?? [], answers = new Map();
  for (const question of questions) {
    element.append(questionOf(question, (result) => {
      answers.set(question.id, { functionResponse: { id: question.id, name: question.tool, response: { result } } });
      if (answers.size === questions.length) begin([...answers.values()]); // the run goes on with all of them
    }));
  }
  if (event.errorCode) element.append(noteOf(event));
  if (!element.childNodes.length) element.remove();
  else if (!element.isConnected) log.append(element);
}

function noteOf(event) {
  const stopped = event.errorCode === "INVOCATION_ABORTED";
  const text = event.errorMessage.replace(/^\[Safepoint: (.*)\]$/s, "$1");
  return make("div", stopped ? "note" : "note failed", stopped ? text : `${event.errorCode}: ${text}`);
}

function cardOf(call, event) {
  let card = calls.get(call.id);
  if (!card) {
    card = make("div", "tool");
    const head = make("header");
    head.append(make("strong", "", call.name), stateOf("running"));
    card.append(head, make("pre", "args", listed(call.args)), make("pre", "result", ""));
    card.setAttribute("aria-label", `Call of ${call.name}`);
    calls.set(call.id, card);
  }
  if (event.longRunningToolIds?.includes(call.id)) setState(card, "waiting");
  return card;
}

/** What a call tells while it runs; its result takes the place of that. */
function showOutput(told) {
  const place = calls.get(told.id)?.querySelector(".result");
  if (!place) return;
  if (run && place.connection !== run.connection) place.textContent = "";
  place.connection = run?.connection;
  place.append(told.response.output);
}

function showResult(result) {
  const card = calls.get(result.id);
  if (!card) return;
  const { state, ...rest } = result.response ?? {};
  setState(card, state ?? (rest.error === undefined ? "finished" : "failed"));
  const values = Object.values(rest);
  card.querySelector(".result").textContent = values.length === 1 ? plain(values[0]) : plain(rest);
}

/** A tool that asks takes any words. A call that waits to be allowed takes yes, or no, or why not. */
function questionOf(question, answered) {
  const box = make("div", "question");
  const payload = question.payload;
  const text = typeof payload === "object" && payload !== null && "question" in payload ? payload.question : payload;
  const form = make("form"), words = make("input");
  const answer = (result) => {
    for (const element of form.elements) element.disabled = true;
    if (typeof result === "boolean") words.value = result ? "yes" : "no";
    answered(result);
  };
  words.setAttribute("aria-label", `Answer to ${question.tool}`);
  form.append(words);
  if (question.kind === "interrupt") {
    words.required = true;
    form.append(make("button", "main", "Answer"));
  } else {
    const yes = make("button", "main", "Yes");
    yes.type = "button";
    yes.onclick = () => answer(true);
    words.placeholder = "Why not?";
    form.prepend(yes);
    form.append(make("button", "", "No"));
  }
  form.onsubmit = (event) => {
    event.preventDefault();
    answer(words.value || false);
  };
  box.append(make("div", "", `${question.tool} asks: ${plain(text)}`), form);
  return box;
}

/** A question that was answered, or that a later message has overtaken, can't be answered any more. */
function closeQuestions() {
  for (const form of log.querySelectorAll(".question form")) form.remove();
}

// -- a run ------------------------------------------------------------------------------------------------------------

async function begin(parts) {
  complain();
  closeQuestions();
  const text = parts.map((part) => part.text ?? "").join("");
  const here = { id: null, seq: 0, stop: new AbortController(), connection: 0, local: null };
  if (text) {
    here.local = make("div", "said user");
    here.local.append(make("div", "words", text));
    keepAtEnd(() => {
      log.querySelector(".empty")?.remove();
      log.append(here.local);
    });
    log.scrollTop = log.scrollHeight;
  }
  run = here;
  showRun();
  const body = { appName: app, userId: user, sessionId: session, streaming: true, onDisconnect: "detach" };
  try {
    const answer = await ask("POST", "run_sse", { ...body, newMessage: { role: "user", parts } }, { signal: here.stop.signal });
    here.id = answer.headers.get("safepoint-run");
    refreshRuns();
    await follow(here, answer);
  } catch (error) {
    if (here.stop.signal.aborted) return;
    if (error instanceof Refused) {
      here.local?.remove();
      if (text && !message.value) message.value = text;
      complain(error);
    }
    if (here.id) await attach(here);
    else leave(here);
  }
}

/** Follow a live run again, from where this page is, until it is over. */
async function attach(here) {
  while (run === here) {
    try {
      const answer = await ask("GET", `runs/${here.id}/events?after=${here.seq}`, undefined, { signal: here.stop.signal });
      return await follow(here, answer);
    } catch (error) {
      if (here.stop.signal.aborted) return;
      if (error instanceof Refused) return leave(here);
      at("status").textContent = "connection lost, trying again …";
      await new Promise((done) => setTimeout(done, 1000));
    }
  }
}

async function follow(here, answer) {
  here.connection += 1;
  let rest = "";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const frames = (rest + value).split("\n\n");
    rest = frames.pop();
    if (run !== here) return;
    for (const frame of frames) take(here, frame);
  }
  leave(here);
}

function take(here, frame) {
  let data = "";
  for (const line of frame.split("\n")) {
    if (line.startsWith("id:")) here.seq = Number(line.slice(3));
    else if (line.startsWith("data:")) data += line.slice(5);
  }
  if (!data) return;
  const event = JSON.parse(data);
  if (event.id) show(event);
}

function leave(here) {
  if (run !== here) return;
  run = null;
  for (const element of log.querySelectorAll(".under-way")) element.classList.remove("under-way");
  showRun();
  refreshRuns();
  refreshSessions();
}

async function stop(where, id) {
  const mine = run && (id === undefined || id === run.id);
  if (mine) {
    run.asked = where === "now" ? "stopping …" : "stopping after this step …";
    showRun();
  }
  const path = id ?? run?.id ? `runs/${id ?? run.id}:cancel` : `${sessionPath(session)}:cancel`;
  try {
    await send(path, { at: where, waitSeconds: 0, reason: "stopped on the page" });
  } catch (error) {
    if (error.status !== 404) complain(error);
  }
  refreshRuns();
}

async function steer(text) {
  const { outcome } = await send(`runs/${run.id}:steer`, { newMessage: { role: "user", parts: [{ text }] } });
  if (outcome === "too_late") throw new Error("The run had ended before that could join it: send it again.");
  message.value = "";
}

function showRun() {
  const live = run !== null;
  for (const id of ["stop-now", "stop-soon"]) at(id).hidden = !live;
  at("send").textContent = live ? "Steer" : "Send";
  at("send").title = live ? "Say something to the agent while it works" : "";
  at("status").textContent = live ? (run.asked ?? "running …") : "";
}

// -- sessions and runs ------------------------------------------------------------------------------------------------

/** Where there is no session yet, nothing else can be done: so the way to one stands in the middle. */
function wayIn() {
  const box = make("p", "empty"), button = make("button", "main", "Start a session");
  button.type = "button";
  button.onclick = tried(newSession);
  box.append(button);
  return box;
}

/** Show nothing but a session's name. What is typed has nowhere to go until the session is loaded. */
function turnTo(id) {
  run?.stop.abort();
  run = null;
  session = id;
  history.replaceState(null, "", `#${app}/${id}`);
  at("title").textContent = id ? short(id) : "No session";
  at("title").title = id;
  shown = new Map();
  calls = new Map();
  log.replaceChildren(id ? make("p", "empty", "Say something.") : wayIn());
  complain();
  message.disabled = at("send").disabled = true;
  showRun();
  return ++moves;
}

async function open(id) {
  const move = turnTo(id);
  if (!id) return;
  try {
    const [found, runs] = await Promise.all([read(sessionPath(id)), read(`runs?app=${app}&user=${user}&state=queued&state=live&limit=1000`)]);
    if (move !== moves) return;
    const live = runs.find((each) => each.sessionId === id);
    for (const event of found.events) show(event);
    const asking = found.events.at(-1)?.customMetadata?.safepointQuestions;
    if (!asking || live) closeQuestions();
    log.scrollTop = log.scrollHeight;
    if (live) {
      run = { id: live.runId, seq: 0, stop: new AbortController(), connection: 0 };
      showRun();
      attach(run);
    }
    message.disabled = at("send").disabled = false;
    message.focus();
  } catch (error) {
    if (move === moves) complain(error);
  }
  markCurrent();
}

function markCurrent() {
  for (const item of document.querySelectorAll("#sessions .item")) item.setAttribute("aria-current", String(item.title === session));
}

async function refreshSessions() {
  if (!app) return;
  const found = await read(sessionPath());
  const items = found.reverse().map((each) => {
    const item = make("li"), button = make("button", "item", short(each.id));
    button.type = "button";
    button.title = each.id;
    button.onclick = () => open(each.id);
    item.append(button, make("span", "state", since(each.lastUpdateTime)));
    return item;
  });
  at("sessions").replaceChildren(...items);
  markCurrent();
}

async function refreshRuns() {
  if (!app) return;
  const found = await read(`runs?app=${app}&user=${user}&limit=50`);
  const items = found.map((each) => {
    const item = make("li"), button = make("button", "item", short(each.sessionId));
    button.type = "button";
    button.title = each.runId;
    button.onclick = () => open(each.sessionId);
    item.append(button, stateOf(each.state === "paused" ? "paused" : (each.outcome ?? each.state)));
    if (!OVER.has(each.state)) {
      const halt = make("button", "stop danger", "Stop");
      halt.type = "button";
      halt.setAttribute("aria-label", `Stop the run in ${short(each.sessionId)}`);
      halt.onclick = () => stop("now", each.runId);
      item.append(halt);
    }
    return item;
  });
  at("runs").replaceChildren(...items);
}

async function newSession() {
  const before = session;
  const move = turnTo("");
  try {
    const made = await send(sessionPath(), {});
    refreshSessions();
    if (move === moves) await open(made.id);
  } catch (error) {
    if (move === moves) await open(before);
    throw error;
  }
}

function choose(name) {
  user = name;
  at("user").value = name;
  localStorage.setItem("user", name);
}

async function openApp(name, id) {
  app = name;
  const move = turnTo("");
  localStorage.setItem("app", name);
  await Promise.all([refreshSessions(), refreshRuns()]);
  if (move === moves) await open(id ?? at("sessions").querySelector(".item")?.title ?? "");
}

// -- what people do ---------------------------------------------------------------------------------------------------

const tried = (act) => async (event) => {
  try {
    complain();
    await act(event);
  } catch (error) {
    complain(error);
  }
};

composer.onsubmit = tried(async (event) => {
  event.preventDefault();
  const text = message.value.trim();
  if (!text || !session) return;
  if (run?.id) return steer(text);
  if (run) return;
  message.value = "";
  begin([{ text }]);
});
message.onkeydown = (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  composer.requestSubmit();
};
document.onkeydown = (event) => {
  if (event.key === "Escape" && run && !at("login").open) stop("now");
};
at("stop-now").onclick = () => stop("now");
at("stop-soon").onclick = () => stop("after_tools");
at("new-session").onclick = tried(newSession);
at("app").onchange = tried(() => openApp(at("app").value));
at("user").onchange = tried(() => {
  choose(at("user").value.trim() || "user");
  return openApp(app);
});
at("theme").onclick = () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  localStorage.setItem("theme", root.dataset.theme);
};
setInterval(() => {
  if (document.visibilityState === "visible" && !at("login").open) refreshRuns().catch(() => {});
}, 3000);

async function start() {
  const theme = localStorage.getItem("theme");
  if (theme) document.documentElement.dataset.theme = theme;
  const mine = document.body.dataset.user;
  choose(mine || localStorage.getItem("user") || "user");
  for (const element of document.querySelectorAll(".user")) element.hidden = Boolean(mine);
  const apps = await read("list-apps");
  at("app").replaceChildren(...apps.map((name) => make("option", "", name)));
  const [wanted, id] = decodeURIComponent(location.hash.slice(1)).split("/");
  const name = [wanted, localStorage.getItem("app"), apps[0]].find((each) => apps.includes(each));
  if (!name) return complain(new Error("This server serves no app."));
  at("app").value = name;
  await openApp(name, name === wanted ? id : undefined);
}

start().catch(complain);
