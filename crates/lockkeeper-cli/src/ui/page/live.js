// Requests with the token, and the stream of changes.

// The token comes behind #, which no server and no log sees; it is kept for this tab only.
const given = new URLSearchParams(location.hash.slice(1)).get("token");
if (given) {
  sessionStorage.setItem("token", given);
  const rest = new URLSearchParams(location.hash.slice(1));
  rest.delete("token");
  history.replaceState(null, "", `#${rest}`);
}

export const setToken = (token) => sessionStorage.setItem("token", token);

export async function ask(path, body) {
  const headers = {};
  const token = sessionStorage.getItem("token");
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body) headers["Content-Type"] = "application/json";
  return fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
}

/** The answer as JSON, or an error with the server's words. */
export async function get(path, body) {
  const reply = await ask(path, body);
  const value = await reply.json();
  if (!reply.ok) throw Object.assign(new Error(value.error), { status: reply.status });
  return value;
}

/**
 * Follows the changes for ever. EventSource cannot send a token, so the stream is read by hand.
 * `onState(text, status)` is called with what is wrong, or with nothing.
 */
export async function follow(onMessage, onState) {
  let wait = 500;
  for (;;) {
    try {
      const reply = await ask("/api/v1/events").catch(() => { throw new Error("the server does not answer"); });
      if (!reply.ok) throw Object.assign(new Error((await reply.json()).error), { status: reply.status });
      onState("");
      const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) throw new Error("the server ended the connection");
        text += value;
        const events = text.split("\n\n");
        text = events.pop();
        for (const event of events) onMessage(JSON.parse(event.replace(/^data: /, "")));
        wait = 500;
      }
    } catch (error) {
      const again = onState(error.message || "no connection", error.status);
      if (again) await again;
      else await new Promise((resolve) => setTimeout(resolve, wait));
      wait = Math.min(wait * 2, 10000);
    }
  }
}
