// What is shown before anything of the fleet is known.

import { el, setText } from "../dom.js";

/** @type {(app: import("../app.js").App) => import("../app.js").View} */
export function waitingView(app) {
  const title = el("h1");
  const text = el("p", { role: "status" });
  const advice = el("p");
  const node = el("section", { class: "empty" }, title, text, advice);
  const update = () => {
    const { refusal } = app.connection;
    if (!refusal) {
      setText(title, "Connecting");
      setText(text, "Asking the coordinators for the fleet …");
      setText(advice, "");
      return;
    }
    setText(title, refusal.denied ? "The fleet is not shown to you" : "No fleet to show yet");
    setText(text, refusal.message);
    setText(advice, refusal.denied
      ? "Where the coordinators ask who you are, this port knows nobody by itself. Start "
        + "“leasehold dashboard” with your own rights, and open the address that it prints. "
        + "With rights to one cluster, add --cluster NAMESPACE/NAME."
      : "The page asks again by itself. “leasehold status” says which replicas there are, and "
        + "what each answers.");
  };
  return { node, title: "Connecting", update };
}
