"use strict";
const element = (name, text = "", parent = null) => {
  const made = document.createElement(name);
  made.textContent = text;
  parent?.append(made);
  return made;
};
const count = number => number.toLocaleString("en-US");

// A section is one tab of a panel, or all of it. What costs time is done when the section is shown first.
const waiting = new Map(); // functions, by section
const when_shown = (section, work) => waiting.set(section, work);
const is_shown = section => section.closest(".panel").open && !section.hidden;
const do_waiting = () => {
  for (const [section, work] of waiting) {
    if (is_shown(section) && waiting.delete(section)) work();
  }
  dispatchEvent(new Event("resize")); // a chart that was hidden has missed the window's changes
};

const choose = section => {
  const panel = section.closest(".panel");
  if (section.closest(".pair")) return do_waiting(); // both are shown
  for (const other of panel.querySelectorAll("section")) other.hidden = other !== section;
  for (const tab of panel.querySelectorAll("[role=tab]")) {
    tab.ariaSelected = String(tab.getAttribute("aria-controls") === section.id);
    tab.tabIndex = tab.ariaSelected === "true" ? 0 : -1;
  }
  do_waiting();
};
const reveal = section => {
  section.closest(".panel").open = true;
  choose(section);
};

for (const panel of document.querySelectorAll(".panel")) {
  panel.addEventListener("toggle", do_waiting);
  const tabs = [...panel.querySelectorAll("[role=tab]")];
  tabs.forEach((tab, i) => {
    tab.addEventListener("click", () => choose(document.getElementById(tab.getAttribute("aria-controls"))));
    tab.addEventListener("keydown", ({ key }) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[key];
      if (step === undefined) return;
      const next = tabs[(i + step + tabs.length) % tabs.length];
      next.click();
      next.focus();
    });
  });
}
const follow_address = () => {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.matches(".panel")) target.open = true;
  else if (target?.matches("main section")) reveal(target);
  target?.scrollIntoView();
};
addEventListener("hashchange", follow_address);

// What the search looks in: {section, search}; `search(text)` shows what has the text, and returns how often it is there.
const searchable = [];
// Sets the search; links of names in tables do.
const search_for = text => {
  const input = document.querySelector("#everywhere");
  input.value = text;
  input.dispatchEvent(new Event("input"));
};
