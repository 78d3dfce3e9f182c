resource "weir_plan" "free" {
  slug = "free"
}

resource "weir_plan" "pro" {
  slug = "pro"
  name = "Pro"
  limits = {
    (weir_rule.api.slug)     = { limit = 1000 }
    (weir_rule.exports.slug) = { unlimited = true }
  }
}
