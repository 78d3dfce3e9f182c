DROP TABLE tier_notices;
