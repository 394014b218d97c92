document.getElementById("head").append(
  make(
    "span",
    { class: "sub" },
    data.facts
      .slice(0, 3)
      .map(([name, figure]) => `${figure} ${name}`)
      .join(" · "),
  ),
);
addEventListener("hashchange", open);
addEventListener("beforeprint", () => {
  for (const name of Object.keys(views)) draw(name);
  if (!shown.sheet) shown.visit([]);
  shown.print(true);
});
addEventListener("afterprint", () => shown.print(false));
open();
