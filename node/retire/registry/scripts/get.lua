--[[
Read one scope.

KEYS[1] scopes  KEYS[2] joins
ARGV[1] scope
Returns {record, '0', node, node, ...}.
Errors: UNKNOWNSCOPE
]]
local held = redis.call('HGET', KEYS[1], ARGV[1])
if not held then
  return refuse('UNKNOWNSCOPE')
end
return { held, '0', unpack(joined_nodes(KEYS[2], ARGV[1])) }
