resource "weir_plan_limit" "free_exports" {
  plan  = weir_plan.free.slug
  rule  = weir_rule.exports.slug
  limit = 1
}
