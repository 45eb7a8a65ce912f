"use strict";
// The server has drawn the page; this fetches it again and takes over what is shown.
let pause_ms = 1000 * Number(document.body.dataset.interval);
const state = document.getElementById("state");
let answered = new Date();
async function refresh() {
  try {
    const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(20000) });
    if (!answer.ok) throw new Error("status " + answer.status);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const places = [...document.querySelectorAll(".wide, ul")].map((each) => [each.scrollLeft, each.scrollTop]);
    document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main")));
    document.querySelectorAll(".wide, ul").forEach((each, at) => {
      if (places[at]) [each.scrollLeft, each.scrollTop] = places[at];
    });
    document.getElementById("taken").textContent = page.getElementById("taken").textContent;
    pause_ms = 1000 * Number(page.body.dataset.interval);
    answered = new Date();
    state.textContent = "";
  } catch (error) {
    state.textContent = "no answer since " + answered.toLocaleTimeString() + " (" + error.message + ")";
  }
  setTimeout(refresh, pause_ms);
}
setTimeout(refresh, pause_ms);
