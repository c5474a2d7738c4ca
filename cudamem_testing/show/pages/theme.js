// The button in the head of a page: colours as the system has them, light, or dark.
const themes = ["auto", "light", "dark"];
const theme = h("button", { type: "button", on: { click: () => {
  const next = themes[(themes.indexOf(document.documentElement.dataset.theme || "auto") + 1) % 3];
  if (next === "auto") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  theme.textContent = `colours: ${next}`;
} } }, "colours: auto");
document.querySelector("header").append(theme);
