// Turns the list of operations at /docs into a reference from which requests can be sent. Where it
// cannot, or scripts are off, the list stays.
"use strict";

(() => {
  const root = document.documentElement;
  root.classList.add("interactive"); // hides the list before it is drawn

  const dark = matchMedia("(prefers-color-scheme: dark)");
  const colour = () => root.classList.toggle("dark-mode", dark.matches); // the class that Swagger UI looks at
  dark.addEventListener("change", colour);
  colour();

  // Read first, as one would do to learn an API.
  const methods = ["get", "post", "put", "patch", "delete"];
  const order = (a, b) =>
    a.get("path").localeCompare(b.get("path")) || methods.indexOf(a.get("method")) - methods.indexOf(b.get("method"));

  document.addEventListener("DOMContentLoaded", () => {
    if (!window.SwaggerUIBundle) {
      root.classList.remove("interactive");
      return;
    }
    SwaggerUIBundle({
      url: "/openapi.json",
      dom_id: "#reference",
      deepLinking: true,
      docExpansion: "none",
      defaultModelRendering: "model",
      defaultModelsExpandDepth: 0,
      displayRequestDuration: true,
      operationsSorter: order,
      persistAuthorization: false, // a key is not left in the browser
      requestSnippetsEnabled: false,
      syntaxHighlight: { activated: true, theme: dark.matches ? "agate" : "idea" },
      tryItOutEnabled: true,
      validatorUrl: null, // the document is shown to nobody else
    });
  });
})();
