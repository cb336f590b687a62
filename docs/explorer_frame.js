// The explorer on the first page: as high as its content, and in the theme of the site.
"use strict";

const theme = () => (document.body.dataset.mdColorScheme === "slate" ? "dark" : "light");
const explorer = () => document.querySelector("iframe.explorer");

addEventListener("message", ({ data, source }) => {
  const frame = explorer();
  if (!frame || source !== frame.contentWindow) return;
  if (data?.ready) source.postMessage({ theme: theme() }, "*");
  if (data?.height) frame.style.height = `${Math.ceil(data.height)}px`;
});

new MutationObserver(() => explorer()?.contentWindow.postMessage({ theme: theme() }, "*"))
  .observe(document.body, { attributeFilter: ["data-md-color-scheme"] });
