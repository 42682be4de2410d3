// The server: requests, the login that some of them need, and streams of events.

export class Refused extends Error {
  constructor(status, text) {
    super(text);
    this.status = status;
  }
}

let loggingIn = null; // one dialog for all requests that wait for it
export const loggedIn = { hear: () => {} }; // told the name of the user who has logged in

export async function request(method, path, body, options = {}) {
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

export const read = async (path) => (await request("GET", path)).json();
export const send = async (path, body) => (await request("POST", path, body)).json();
export const remove = (path) => request("DELETE", path);

function explained(detail) {
  try {
    const found = JSON.parse(detail).detail;
    return typeof found === "string" ? found : found.map((each) => each.msg).join("; ");
  } catch {
    return detail;
  }
}

function logIn() {
  const dialog = document.getElementById("login"), field = document.getElementById("key");
  const problem = document.getElementById("login-problem");
  if (!dialog.open) dialog.showModal();
  return new Promise((done) => {
    document.getElementById("login-form").onsubmit = async (event) => {
      event.preventDefault();
      const answer = await fetch("login", {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ key: field.value }),
      });
      field.value = "";
      if (!answer.ok) {
        problem.textContent = explained(await answer.text());
        return;
      }
      const who = await answer.json();
      if (who.user) loggedIn.hear(who.user);
      problem.textContent = "";
      dialog.close();
      done();
    };
  });
}

/** The frames of a stream of events: `take(number, event)` for each; returns at its end. */
export async function frames(answer, take) {
  let rest = "";
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const whole = (rest + value).split("\n\n");
    rest = whole.pop();
    for (const frame of whole) {
      let number = null, data = "";
      for (const line of frame.split("\n")) {
        if (line.startsWith("id:")) number = Number(line.slice(3));
        else if (line.startsWith("data:")) data += line.slice(5);
      }
      take(number, data ? JSON.parse(data) : null);
    }
  }
}

export function asPart(file) {
  return new Promise((done, failed) => {
    const reader = new FileReader();
    reader.onerror = () => failed(reader.error);
    reader.onload = () => {
      const data = String(reader.result).split(",")[1] ?? "";
      done({ inlineData: { mimeType: file.type || "application/octet-stream", data, displayName: file.name } });
    };
    reader.readAsDataURL(file);
  });
}
