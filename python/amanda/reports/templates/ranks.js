"use strict";
// Sections of no rank are always shown.
const chosen = document.querySelector("#rank");
const follow = () => {
  for (const section of document.querySelectorAll("section[data-rank]")) {
    section.hidden = chosen.value !== "" && section.dataset.rank !== chosen.value;
  }
  dispatchEvent(new Event("resize")); // a chart that was hidden has missed the window's changes
};
chosen.addEventListener("change", follow);
follow(); // a browser restores a choice when a page is loaded again
