// On request, converts the list of operations at /docs to a reference that can send requests. Until
// then, if this fails, or if scripts are off, the list is shown.
"use strict";

(() => {
  const root = document.documentElement;
  const button = document.getElementById("try");

  // The theme is the one that was chosen in the dashboard, or that of the system.
  const system = matchMedia("(prefers-color-scheme: dark)");
  const dark = () => (root.dataset.theme ? root.dataset.theme === "dark" : system.matches);
  const colour = () => root.classList.toggle("dark-mode", dark()); // the class that Swagger UI uses
  system.addEventListener("change", colour);
  colour();

  // The operations for reading come first.
  const methods = ["get", "post", "put", "patch", "delete"];
  const order = (a, b) =>
    a.get("path").localeCompare(b.get("path")) || methods.indexOf(a.get("method")) - methods.indexOf(b.get("method"));

  function loaded(element, attributes) {
    return new Promise((done, failed) => {
      const part = Object.assign(document.createElement(element), attributes);
      part.addEventListener("load", done);
      part.addEventListener("error", failed);
      document.head.prepend(part); // before docs.css, which changes the colours of Swagger UI
    });
  }

  async function open() {
    button.disabled = true;
    try {
      await Promise.all([
        loaded("link", { rel: "stylesheet", href: button.dataset.styleSrc }),
        loaded("script", { src: button.dataset.bundleSrc }),
      ]);
    } catch {
      button.disabled = false;
      return;
    }
    button.hidden = true;
    root.classList.add("interactive"); // hides the list
    SwaggerUIBundle({
      url: "/openapi.json",
      dom_id: "#reference",
      deepLinking: true,
      docExpansion: "none",
      defaultModelRendering: "model",
      defaultModelsExpandDepth: 0,
      displayRequestDuration: true,
      operationsSorter: order,
      persistAuthorization: false, // the browser does not store the key
      requestSnippetsEnabled: false,
      syntaxHighlight: { activated: true, theme: dark() ? "agate" : "idea" },
      tryItOutEnabled: true,
      validatorUrl: null, // the document is not sent to a third party
    });
  }

  button.hidden = false;
  button.addEventListener("click", open);
  if (location.hash.startsWith("#/")) open(); // a link to an operation of Swagger UI
})();
