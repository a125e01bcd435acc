// What is pinned stands in the address, in the forms, and in the links that lead to the same graph.
(() => {
  const names = [...document.querySelectorAll("#graph a.node")].map(node => node.dataset.id);
  const withPins = (href, pins) => {
    const url = new URL(href, location.href);
    if (pins) url.searchParams.set("pin", pins);
    else url.searchParams.delete("pin");
    return url;
  };
  document.addEventListener("pins", event => {
    const pins = event.detail.map(i => names[i]).join(",");
    history.replaceState(null, "", withPins(location.href, pins));
    for (const field of document.querySelectorAll("input[type=hidden][name=pin]")) field.value = pins;
    for (const link of document.querySelectorAll("a[data-keeps], .panel a.remove, .downloads a")) {
      link.href = withPins(link.href, pins);
    }
    for (const row of document.querySelectorAll("tr[data-remove]")) row.dataset.remove = withPins(row.dataset.remove, pins);
  });
})();
