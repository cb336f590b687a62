// The explorer on the first page: as high as its content, and in the theme of the site.
"use strict";

const theme = () => (document.body.dataset.mdColorScheme === "slate" ? "dark" : "light");
const explorer = () => document.querySelector("iframe.explorer");

const tellTheme = () => explorer()?.contentWindow.postMessage({ theme: theme() }, "*");

addEventListener("message", ({ data, source }) => {
  const frame = explorer();
  if (!frame || source !== frame.contentWindow) return;
  if (data?.ready) tellTheme();
  // With room for the border.
  if (data?.height) frame.style.height = `${Math.ceil(data.height) + 2}px`;
});

new MutationObserver(tellTheme).observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
tellTheme(); // the frame may have been ready before this script
