// Runs before the page is drawn, so that it never appears in the wrong colours first.
(() => {
  let theme = null;
  try {
    theme = localStorage.getItem("courser.theme");
  } catch {
    // Storage is switched off: the theme of the system is used.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
})();
