DROP TABLE plan_limits;
DROP TABLE plans;
DROP TABLE rules;
