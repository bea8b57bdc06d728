--[[
A node holds no gate of the scope any more. Leaving twice, or a scope never joined, changes nothing.

KEYS[1] meta  KEYS[2] joins
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] scope  ARGV[4] node
Returns 'OK'.
Errors: NEEDREGISTER tenant, TERMMISMATCH
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
for _, member in ipairs(below(KEYS[2], ARGV[3] .. '\0' .. ARGV[4])) do
  redis.call('ZREM', KEYS[2], member)
end
return 'OK'
